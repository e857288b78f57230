"""Whole runs of any size on one machine: the real code of both sides, on a virtual clock."""
