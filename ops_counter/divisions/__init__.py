"""The benchmark's two divisions, closed and open, as rules with limits (docs/divisions.md)."""

from aiperf_hpc.ops_counter.divisions.rule import Division, RuleCheck, Violation, violations_of

__all__ = ["Division", "RuleCheck", "Violation", "violations_of"]
