"""Runs ranked by their score: those that verification passes, others apart with the reason."""
