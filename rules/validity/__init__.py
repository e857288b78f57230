"""Rules on validity: what a run must be to be official in a division (docs/divisions.md)."""
