"""Runs over HTTP: read while they last and afterwards, and by whom."""
