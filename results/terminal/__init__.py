"""Terminal output of a run: status line, progress and events."""
