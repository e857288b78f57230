"""Witness: a small timestamping service that signs journal digests of runs with its own time."""
