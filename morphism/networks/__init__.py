"""Initial networks."""
