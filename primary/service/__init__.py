"""The status of a run over REST."""
