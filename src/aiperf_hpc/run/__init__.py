"""One run's directory: its files, its records, and what they say when they are replayed."""
