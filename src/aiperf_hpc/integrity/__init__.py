"""Integrity of a run's code and files: signatures, releases, commits."""
