"""Weights: stored, checked, inherited."""
