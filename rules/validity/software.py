"""Rules on the software: an unchanged release, with the same versions on all replicas."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from aiperf_hpc.integrity.imports import Imports, find_imports
from aiperf_hpc.integrity.release import FILES, list_digest, released
from aiperf_hpc.rules.rule import Each, Findings, Found, first_reasons
from aiperf_hpc.rules.validity.evidence import RunEvidence
from aiperf_hpc.run.history import ReplicaHistory
from aiperf_hpc.run.records import ModulesImported

PACKAGE = "aiperf-hpc"


class Code(NamedTuple):
    """The software of a run or a planned run."""

    versions: Mapping[str, str]
    """Versions of packages by name, and the digest of this package's files."""
    changes: Iterable[str]
    """Files that differ from the release of this version, and how."""
    others: Iterable[str] = ()
    """Replicas whose files differ from the primary's."""
    imports: Iterable[Imports] = ()
    """Imported files of each process that may replace code."""
    silent: Iterable[str] = ()
    """Replicas that did not record their imported modules."""
    earlier: bool = False
    """Whether its records have the format of an earlier version than any release."""


_ALLOWED: Final = frozenset({"_virtualenv.pth", "_virtualenv.py"})
"""Names of files that virtualenv and uv write into each environment, outside any distribution."""


def code_here(versions: Mapping[str, str], changes: Iterable[str]) -> Code:
    """Return the software of a planned run, with what Python imports when a process starts."""
    names = ("sitecustomize", "usercustomize")
    modules = {name: sys.modules[name] for name in names if name in sys.modules}
    return Code(versions, changes, imports=[find_imports(modules)])


def code_of(run: RunEvidence) -> Code:
    """Return the software of a run."""
    manifest = run.manifest
    files = manifest.versions.get(FILES)
    machines = ((each.id, each.machine) for each in run.replicas)
    others = (name for name, it in machines if it is not None and it.versions.get(FILES) != files)
    recorded = [(r.id, m) for r in run.replicas for m in _modules(r)]
    return Code(
        manifest.versions,
        manifest.release_changes,
        dict.fromkeys([*others, *(name for name, it in recorded if it.package_sha256 != files)]),
        (Imports(it.foreign, it.modified) for _, it in recorded),
        (r.id for r in run.replicas if manifest.monitored and _is_silent(r)),
        manifest.earlier,
    )


def _modules(replica: ReplicaHistory) -> Iterator[ModulesImported]:
    for ranks in replica.modules.values():
        for several in ranks.values():
            yield from several


def _is_silent(replica: ReplicaHistory) -> bool:
    """Return whether a rank of an attempt that loaded the dataset recorded no modules."""
    ranks = max(1, len(replica.started.hosts)) if replica.started is not None else 1
    complete = [each for each in replica.modules.values() if len(each) >= ranks]
    return len(complete) < len(replica.loads)


def release(code: Code) -> Findings:
    """All replicas run the unchanged code of a release."""
    version, files = code.versions.get(PACKAGE, "unknown"), code.versions.get(FILES)
    releases = released()
    yield Found(f"{version}, files {(files or 'unknown')[:12]}")
    if code.earlier:
        yield "the format of its records is older than any release; run a released version"
    elif files is None:
        yield "the run does not record the digest of the package's files; run a released version"
    elif version not in releases:
        known = ", ".join(releases) or "none exists yet"
        yield f"version {version} is not released; run a released version ({known})"
    elif files != list_digest(releases[version]):
        named = ", ".join(first_reasons(code.changes)) or "its files differ"
        yield f"not release {version}: {named}; install the release unchanged"
    if named := ", ".join(first_reasons(code.others)):
        yield f"other files of the package on {named}; install the same release on all nodes"
    if named := ", ".join(first_reasons(code.silent)):
        yield f"{named} did not record the imported modules of each rank"
    yield from dict.fromkeys(Each(line) for own in code.imports for line in _replacements(own))


def _replacements(found: Imports) -> Iterator[str]:
    for path in found.foreign:
        if Path(path).name not in _ALLOWED:
            yield f"{path} belongs to no installed distribution; remove it or start without it"
    for path in found.modified:
        yield f"{path} differs from the installed file of its distribution; reinstall it"


def versions(run: RunEvidence) -> Findings:
    """All replicas have the same versions of all packages."""
    listed = {
        each.id: tuple(sorted(each.machine.versions.items()))
        for each in run.replicas
        if each.machine is not None
    }
    kinds = Counter(listed.values())
    yield Found(f"{len(kinds)} different on {len(listed):,} replicas")
    if not kinds:
        yield "no replica stated its versions"
        return
    usual = kinds.most_common(1)[0][0]
    other = next((name for name, versions in listed.items() if versions != usual), None)
    if other is not None:
        names = ", ".join(_differences(dict(listed[other]), dict(usual)))
        yield f"{other} has {names}; most replicas have another"


def _differences(its: Mapping[str, str], theirs: Mapping[str, str]) -> Iterator[str]:
    for name in sorted({**its, **theirs}):
        if its.get(name) != theirs.get(name):
            yield f"{name} {its.get(name, 'none')}"
