"""The benchmark's rules: whether a run's result is valid, and whether its records are consistent.

A rule is a function that yields its findings, with an entry in ``registry.py``.
"""
