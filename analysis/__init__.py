"""``aiperf analyze``: the measures of the field's benchmarks, on our runs and on public logs."""
