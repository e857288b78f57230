"""Rules on validity: the requirements of official runs by division (docs/divisions.md)."""
