"""Trials of a run, drawn and executed again: ``aiperf verify --execute``."""
