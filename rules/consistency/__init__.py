"""Rules on consistency: whether a run's records prove its score (docs/trust.md)."""
