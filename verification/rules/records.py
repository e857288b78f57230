"""The records, and what every process of the run must have had in common."""

from __future__ import annotations

from typing import NamedTuple

from aiperf_hpc.formatting import utc_text
from aiperf_hpc.run.journal import MOST_LINE_BYTES, is_torn
from aiperf_hpc.run.records import ReplicaStarted
from aiperf_hpc.untrusted.files import open_regular
from aiperf_hpc.verification.evidence import Evidence, Failures, Note


def journals(run: Evidence) -> Failures:
    """Every line is a record, with the number that is due, of a trial that was started.

    Once the run has ended nothing follows the last record of a journal but an unfinished write,
    which a process leaves that is killed or loses its power.
    """
    for problem in run.history.problems:
        yield str(problem)
    if run.history.end_utc is not None:
        for path in sorted(run.history.torn):
            with open_regular(path, follow=False) as file:
                file.seek(run.history.bytes_read[path])
                if not is_torn(file.read(MOST_LINE_BYTES)):
                    yield f"{path}: what follows the last record is no unfinished record"


def clocks(run: Evidence) -> Failures:
    """Within one writer, the UTC clock must run as the monotonic one does.

    A time service may set the former, and the latter rests while a machine is suspended.
    """
    for path, journal in run.journals.items():
        where = path.relative_to(run.view.paths.root)
        for step in journal.steps:
            text = f"{where}, {step.text}"
            honest = run.is_honest(path, step)
            yield Note(f"{text}: the clock was set, or its machine suspended") if honest else text


def replicas(run: Evidence) -> Failures:
    """What the primary knows from a replica's records, or from its success, needs records."""
    for replica in run.history.replicas.values():
        if not replica.starts and replica.seen:
            what = f"the primary recorded that {replica.id} {replica.seen}"
            yield f"{what}; {replica.id} recorded no start"


def config(run: Evidence) -> Failures:
    """``run.yaml`` is what every primary and every replica had, by its SHA-256.

    In earlier versions replicas did not state it, and primaries neither.
    """
    yield from _asked(run)
    yield from _engines(run)
    now = run.view.paths.manifest_digest()
    primaries, replicas = _stated_by_primaries(run), _stated_by_replicas(run)
    for each in (*primaries, *replicas):
        if each.sha256 not in ("", now):
            yield f"run.yaml has SHA-256 {now[:12]}, {each.who} had {each.sha256[:12]}"
    if not any(each.sha256 for each in (*primaries, *replicas)):
        yield Note("nobody stated the SHA-256 of run.yaml: it may be another than the run's")
        return
    required = [*primaries, *(replicas if any(each.sha256 for each in replicas) else ())]
    for each in required:
        if not each.sha256:
            yield f"{each.who} did not state the SHA-256 of run.yaml, as others did"


class Stated(NamedTuple):
    """What one process stated of ``run.yaml``."""

    who: str
    sha256: str
    """Empty where it did not."""


def _asked(run: Evidence) -> Failures:
    """Each primary states the run that ``run.yaml`` asks for."""
    manifest = run.view.manifest
    for utc, event in run.history.run_starts:
        for name in ("run_id", "nodes", "hours", "launcher"):
            stated, asked = getattr(event, name), getattr(manifest, name)
            if stated != asked:
                yield f"run.yaml has {name} {asked}, the primary of {utc_text(utc)} had {stated}"


def _engines(run: Evidence) -> Failures:
    """Each life of a replica had the engine that ``run.yaml`` asks for."""
    for replica in run.history.replicas.values():
        for life, journal in run.lives(replica).items():
            used = {started.engine for _, started in journal.told(ReplicaStarted)}
            for other in sorted(used - {run.config.engine.name}):
                asked = run.config.engine.name
                yield f"run.yaml asks for {asked}, {replica.id}, life {life}, had {other}"


def stated_manifests(run: Evidence) -> int:
    """Return how many processes stated the SHA-256 of ``run.yaml``."""
    stated = (*_stated_by_primaries(run), *_stated_by_replicas(run))
    return sum(bool(each.sha256) for each in stated)


def _stated_by_primaries(run: Evidence) -> list[Stated]:
    starts = run.history.run_starts
    return [Stated(f"the primary of {utc_text(utc)}", e.manifest_sha256) for utc, e in starts]


def _stated_by_replicas(run: Evidence) -> list[Stated]:
    return [
        Stated(f"{replica.id}, life {life},", started.manifest_sha256)
        for replica in run.history.replicas.values()
        for life, journal in run.lives(replica).items()
        for _, started in journal.told(ReplicaStarted)
    ]


def dataset(run: Evidence) -> Failures:
    """All replicas had one dataset, of the name that the configuration asks for."""
    if len(run.datasets) != 1:
        names = [f"{d.name} {d.sha256[:12]}" for d in run.datasets]
        yield f"replicas must have one dataset, they have {names}"
    expected = run.view.manifest.dataset
    for dataset in run.datasets:
        if expected is not None and dataset != expected:
            yield f"run.yaml describes {expected.sha256[:12]}, replicas had {dataset.sha256[:12]}"
        if dataset.name != run.config.dataset.name:
            yield f"run.yaml asks for {run.config.dataset.name}, replicas had {dataset.name}"
