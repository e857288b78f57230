"""By which code a run was made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from aiperf_hpc.ops_counter.divisions.rule import RuleCheck

PACKAGE = "aiperf-hpc"
CHANGED = "+"
"""What a commit ends in whose files were changed."""


def release_rule(versions: Mapping[str, str], commit: str | None, tag: str) -> RuleCheck:
    """Return whether the code is a release's, unchanged.

    Args:
        versions: those of the packages, by name.
        commit: as a run states it; None where nobody knows.
        tag: the release that the commit is; empty where it is none.
    """
    version = versions.get(PACKAGE, "of an unknown version")
    known = "unknown" if commit is None else commit[:12]
    changed = ", changed" if commit is not None and commit.endswith(CHANGED) else ""
    value = f"{version}, commit {known}, {tag or 'no tag'}{changed}"
    return RuleCheck.of("release", value, "a release, unchanged", _reasons(version, commit, tag))


def _reasons(version: str, commit: str | None, tag: str) -> Iterator[str]:
    if commit is None:
        yield "nobody knows its commit; install a release, or run from its repository"
        return
    if commit.endswith(CHANGED):
        yield f"files differ from commit {commit.rstrip(CHANGED)[:12]}; undo or commit the changes"
    if not tag:
        yield f"commit {commit.rstrip(CHANGED)[:12]} has no release's tag; check out v{version}"
    elif tag != f"v{version}":
        yield f"its tag is {tag} and its version {version}; check out v{version}"


def versions_rule(replicas: Iterable[tuple[str, Mapping[str, str]]]) -> RuleCheck:
    """Return whether all replicas had the same versions of all packages.

    Args:
        replicas: the name of each, and its versions.
    """
    listed = [(name, tuple(sorted(versions.items()))) for name, versions in replicas]
    kinds = Counter(versions for _, versions in listed)
    value = f"{len(kinds)} kinds on {len(listed):,} replicas"
    if not kinds:
        return RuleCheck("versions", value, "the same on all", ("no replica stated its versions",))
    usual = kinds.most_common(1)[0][0]
    other = next((name for name, versions in listed if versions != usual), None)
    wrong = () if other is None else (_difference(other, dict(listed)[other], usual),)
    return RuleCheck("versions", value, "the same on all", wrong)


def _difference(
    replica: str, versions: tuple[tuple[str, str], ...], usual: tuple[tuple[str, str], ...]
) -> str:
    its, theirs = dict(versions), dict(usual)
    names = [name for name in {**its, **theirs} if its.get(name) != theirs.get(name)]
    shown = ", ".join(f"{name} {its.get(name, 'none')}" for name in sorted(names))
    return f"{replica} has {shown}; most replicas have another"
