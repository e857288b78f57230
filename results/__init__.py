"""Results of a run: views, report, comparison and terminal display."""
