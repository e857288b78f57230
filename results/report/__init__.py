"""The report of a run: its content, its page and its plots."""
