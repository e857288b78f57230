"""Rules on the software: an unchanged release, with the same versions on all replicas."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from aiperf_hpc.integrity.imports import MOST, Imports, find_imports
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


_ALLOWED: Final = frozenset(
    {
        # _virtualenv.pth
        "69ac3d8f27e679c81b94ab30b3b56e9cd138219b1ba94a1fa3606d5a76a1433d",
        # _virtualenv.py of virtualenv 20.0 to 21.15
        "684b8c07932ba4a84ac2e5ae9afe49ef04e92bac3d8d4191d455cf09d093e5fc",
        "ce57d5e0d9b5d7356cb42da7450ba8f9359bdf693e335f4c921626943c77e64d",
        "c9199315871b11b12df226f890a38e66e63191e1adbfb11a66e6861151b33fca",
        "119e4eb9c1a39e6ffd220840844bd326fa1bd3acf2f1c9fa0612949aedc228a5",
        "0aeb86546345c1d0fada097536e35525714d5cdbcc2d8eb3f9912a955044fcff",
        "0f20351ea7e90039c46d3fabdef991f28b1e3ff33eb13ee6f0d5cd21ea0e8b14",
        "bec6155ff7bfc88f8e79e481f27fd7ee0a3b40eeca9bfeb41f4c4b997b2f8100",
        "e8c426ce260f866254ff35cefedc8b3efbd6d1446d99d7a4cdeb0095f98a8b8f",
        "cfe56cafbd68fd31a0e87100f111d7d2f6b7157241096500013c07e88d80a22f",
        # _virtualenv.py of uv 0.1 to 0.13
        "ee52b2e2e720a40885a6b4b90c40e28e5c70e550af74d5efd169eaa5db2a6f6f",
        "6cf30c56faf2a55228914dbbd17f8088ed371ebb08f5e7fa6fd931f913fcaf1d",
        "cfb3db86aaa53bb62b5ff764970bec2d71c9228590a0ebec57f6ec926cc0bf1a",
    }
)
"""SHA-256 of files that virtualenv and uv write into each environment, outside any distribution.

Other versions may write other files: they are reported before a run starts, and none needs them.
"""


def code_here(versions: Mapping[str, str], changes: Iterable[str]) -> Code:
    """Return the software of a planned run, with what Python imports when a process starts."""
    names = ("sitecustomize", "usercustomize", "_virtualenv")
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
    for path, digest in found.foreign.items():
        if digest not in _ALLOWED:
            yield f"{path} belongs to no installed distribution; remove it or start without it"
    if len(found.foreign) >= MOST:  # Others may not be listed.
        yield f"{MOST} or more imported files belong to no installed distribution; remove them"
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
    sets = "1 set" if len(kinds) == 1 else f"{len(kinds):,} sets"
    yield Found(f"{sets} of versions on {len(listed):,} replicas")
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
