"""Runs side by side: in what they differ, what they reached, and whether their scores compare."""
