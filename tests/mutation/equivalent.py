"""Mutants that no test can kill, each with the reason."""

EQUIVALENT = {
    "rules/consistency/journal_digests.py:_journal: 0 -> 1": "what is read is not used then",
    "rules/validity/precision.py:: 32 -> 33": "bits are only compared, and no precision has more",
    "verification/audit.py:check: True -> False": "it only decides when garbage is collected",
    (
        "src/aiperf_hpc/run/search_digest.py:DigestWriter._new_trials: "
        "trials is not self._trials -> True"
    ): "it only decides how many trials are compared again",
    "src/aiperf_hpc/run/journal.py:_why: False -> True": "an error's web address is not read",
}
