"""Verification: recomputation of a run's score from its own records."""
