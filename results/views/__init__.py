"""Views of a run: one read interface to its records, and its lines for terminals."""
