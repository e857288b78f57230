"""The benchmark's rules: whether a run's result is valid, and whether its records are consistent.

``registry.py`` lists them all. A rule is a function that yields what it finds, and a row there.
"""
