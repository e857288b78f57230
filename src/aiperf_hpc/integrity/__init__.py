"""What a run's code and files are known by: signatures, releases, commits."""
