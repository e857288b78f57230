"""The witness: a small service that signs what it was shown of runs, with its own time."""
