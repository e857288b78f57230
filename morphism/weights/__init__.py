"""Weights: storage, validation and inheritance."""
