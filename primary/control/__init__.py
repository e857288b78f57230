"""Conducting a run: claiming it, starting it, watching it, going on with it."""
