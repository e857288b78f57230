"""``aiperf analyze``: metrics of published benchmarks, computed from runs and public logs."""
