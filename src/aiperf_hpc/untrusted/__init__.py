"""Bounded reading of files and values from unknown sources."""
