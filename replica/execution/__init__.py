"""Recorded epochs of a run, executed again: ``aiperf verify --execute``."""
