"""Mutants that no test can kill, each with the reason."""

EQUIVALENT: dict[str, str] = {}
