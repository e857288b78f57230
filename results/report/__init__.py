"""Report of a run: its content, page and plots."""
