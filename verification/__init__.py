"""Verification: a run recounted from its own records."""
