"""Searchers: which trial to grow from, and how."""
