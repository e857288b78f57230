"""Which trials a replica runs, and in what order."""
