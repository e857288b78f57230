"""Mutants that no test can kill, each with the reason."""

EQUIVALENT = {
    "rules/validity/precision.py:: 32 -> 33": "bits are only compared, and no precision has more",
    "src/aiperf_hpc/run/journal.py:_why: False -> True": "an error's web address is not read",
}
