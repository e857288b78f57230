"""Queries of one run: each is a question, a pure function of a view, and a typed answer."""
