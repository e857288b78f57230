"""A run on a terminal: its status line, progress and events."""
