"""Showing a run's heads to witnesses, and checking what they say."""
