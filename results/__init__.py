"""What people and programs read of a run: views, report, comparison, terminal display."""
