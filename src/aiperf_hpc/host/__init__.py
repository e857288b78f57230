"""This machine: its cores and devices, processes, signals and output streams."""
