"""By which code a run was made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from aiperf_hpc.integrity.release import FILES, list_digest, released
from aiperf_hpc.ops_counter.divisions.evidence import told
from aiperf_hpc.ops_counter.divisions.rule import RuleCheck

PACKAGE = "aiperf-hpc"


def release_rule(
    versions: Mapping[str, str], changes: Iterable[str], others: Iterable[str] = ()
) -> RuleCheck:
    """Return whether the code is a release's, unchanged.

    Args:
        versions: those of the packages, by name, and the digest of this package's files.
        changes: the files that differ from the release of this version, and how.
        others: the replicas whose files are not those that the run was started with.
    """
    version = versions.get(PACKAGE, "unknown")
    value = f"{version}, files {versions.get(FILES, 'unknown')[:12]}"
    reasons = (*_reasons(version, versions.get(FILES), changes), *_others(others))
    return RuleCheck("release", value, "a release, unchanged", reasons)


def _reasons(version: str, files: str | None, changes: Iterable[str]) -> Iterator[str]:
    releases = released()
    if files is None:
        yield "the run does not record the digest of the package's files; run a released version"
    elif version not in releases:
        known = ", ".join(releases) or "none exists yet"
        yield f"version {version} is not released; run a released version ({known})"
    elif files != list_digest(releases[version]):
        named = ", ".join(told(changes)) or "its files differ"
        yield f"not release {version}: {named}; install the release unchanged"


def _others(replicas: Iterable[str]) -> Iterator[str]:
    if named := ", ".join(told(replicas)):
        yield f"other files of the package on {named}; install the same release on all nodes"


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
