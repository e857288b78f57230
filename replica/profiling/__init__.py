"""Some training steps of one network under its framework's profiler: ``aiperf profile``."""
