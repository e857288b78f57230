"""Names of a run's files, replicas and attempts, and seeds derived from names."""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import get_ident
from typing import ClassVar

from aiperf_hpc.run.storage import Sync, to_stable_storage
from aiperf_hpc.untrusted.files import NotRegularError, bytes_inside, require_no_link

PEAKS = "peaks.json"
"""File name of a machine's peak rates, in a run directory and elsewhere."""


@dataclass(frozen=True, slots=True, order=True)
class Incarnation:
    """One attempt of a replica. Later attempts compare greater."""

    launch: int = 0
    """The number of earlier launches by the primary."""
    restart: int = 0
    """The number of requeueings by the scheduler since that launch."""

    def __str__(self) -> str:
        return f"{self.launch}.{self.restart}"

    @classmethod
    def parse(cls, text: str) -> Incarnation:
        """Parse the result of ``str``. Raises ValueError for any other text."""
        launch, restart = text.split(".")
        parsed = cls(int(launch), int(restart))
        if str(parsed) != text or min(parsed.launch, parsed.restart) < 0:
            raise ValueError(f"'{text}' is not an attempt of a replica")
        return parsed


FIRST = Incarnation()


class _Below:
    """A path below the run directory, as an attribute of ``RunPaths``."""

    def __init__(self, *parts: str) -> None:
        self._parts = parts

    def __get__(self, paths: RunPaths, owner: type[RunPaths]) -> Path:
        return paths.root.joinpath(*self._parts)


@dataclass(frozen=True, slots=True)
class RunPaths:
    """The layout of a run directory on the shared file system.

    Each file has one writer: the primary writes ``run.yaml``, ``primary/`` and ``report/``, and a
    replica writes its own folder. A candidate's files are written to a temporary name and renamed.
    Only ``annotations.json`` is written by any command of the user.
    """

    root: Path

    manifest = _Below("run.yaml")
    """The run's size, configuration, versions and seed (``RunManifest``)."""

    def manifest_digest(self) -> str:
        """Return the SHA-256 of the manifest as it is now."""
        return hashlib.sha256(bytes_inside(self.root, self.manifest)).hexdigest()

    annotations = _Below("annotations.json")
    """Tags and the note of the run, if it has any (``run/annotations.py``); no evidence."""
    primary_journal = _Below("primary", "journal.jsonl")
    claims = _Below("primary", "claims")
    """The successive primaries of the run (``primary/control/claim.py``)."""
    digest = _Below("primary", "digest.jsonl")
    """The digest of all replicas for the search workers (``run/search_digest.py``)."""
    primary_digest = _Below("primary", "journal_digest.json")
    """The latest digest of the primary's journal, for the replicas to record; no evidence."""

    journal_digests = _Below("primary", "journal_digests.jsonl")
    """The digests of all journals by the primary (``run/journal_digest.py``)."""
    earlier_journal_digests = _Below("primary", "heads.jsonl")
    """The same file in runs of earlier versions."""
    witness_token = _Below("primary", "witness-token")
    """The secret by which witnesses recognize the run; readable only by its primary."""
    peaks = _Below(PEAKS)
    """The machine's peak rates, if they were measured for this run."""
    peaks_after = _Below("peaks-after.json")
    """The machine's peak rates after the run."""
    batch_script = _Below("primary", "batch.sh")
    """The batch script that was submitted to the scheduler."""
    allocation_log = _Below("primary", "allocation.log")
    """The output of salloc for the run's own jobs."""
    primary_log = _Below("primary", "output.log")
    """The output of a primary in the background; for people, never parsed."""
    service = _Below("primary", "service.json")
    """The address of the run's REST service, if it has one."""
    stop_request = _Below("primary", "stop")
    """Exists once a graceful stop is requested; its text is the reason."""
    scale_request = _Below("primary", "scale.json")
    """Exists while a request for another number of nodes is pending (``run/requests.py``)."""
    replicas = _Below("replicas")

    def replica(self, replica: str) -> Path:
        return self.replicas / replica

    def incarnation(self, replica: str, incarnation: Incarnation) -> Path:
        """The folder of one attempt of a replica: attempts that overlap share no file."""
        return self.replica(replica) / str(incarnation)

    def replica_journal(self, replica: str, incarnation: Incarnation = FIRST) -> Path:
        return self.incarnation(replica, incarnation) / "journal.jsonl"

    def replica_log(self, replica: str) -> Path:
        """The output of the replica's processes; for people, never parsed."""
        return self.replica(replica) / "output.log"

    def search_journal(self, replica: str, worker: int, incarnation: Incarnation = FIRST) -> Path:
        return self.incarnation(replica, incarnation) / f"search-{worker}.jsonl"

    def telemetry_journal(self, replica: str, rank: int, incarnation: Incarnation = FIRST) -> Path:
        """The telemetry of a node of a replica that has several, by its first rank there."""
        return self.incarnation(replica, incarnation) / f"telemetry-{rank}.jsonl"

    def study(self, replica: str, incarnation: Incarnation = FIRST) -> Path:
        """Optuna's journal storage."""
        return self.incarnation(replica, incarnation) / "study.log"

    def under_way(self, replica: str, incarnation: Incarnation = FIRST) -> Path:
        """The checkpoint of the current trial."""
        return self.incarnation(replica, incarnation) / "under-way.safetensors"

    def trained(self, replica: str, trial: str) -> Path:
        """The checkpoint of a trial's trained weights."""
        return self.replica(replica) / "trained" / f"{trial}.safetensors"

    def predictions(self, replica: str, trial: str) -> Path:
        """The predicted class of each validation sample, if predictions are stored."""
        return self.replica(replica) / "predictions" / f"{trial}.safetensors"

    def epoch_began(self, replica: str, trial: str) -> Path:
        """The checkpoint with which the epoch of a trial's best evaluation began."""
        return self.replica(replica) / "kept" / f"{trial}-began.safetensors"

    def epoch_evaluated(self, replica: str, trial: str) -> Path:
        """The checkpoint of the weights of a trial's best evaluation."""
        return self.replica(replica) / "kept" / f"{trial}-evaluated.safetensors"

    FOLDERS: ClassVar = re.compile(
        r"(candidates|primary/claims|replicas(/[^/]+(/(\d+\.\d+|kept|predictions|trained))?)?)/"
    )
    """Folders of a run that may be empty, e.g. of a replica that never started."""
    candidates = _Below("candidates")

    def graph(self, graph_hash: str) -> Path:
        return self.candidates / f"{graph_hash}.json"

    def candidate(self, proposal: str) -> Path:
        """The checkpoint of a candidate: its graph with the weights inherited from its parent."""
        return self.candidates / f"{proposal}.safetensors"

    report = _Below("report")
    report_html = _Below("report", "report.html")
    report_json = _Below("report", "report.json")
    report_summary = _Below("report", "summary.json")
    """The row of an ended run in a list of runs (``results/views/run_catalog.py``)."""
    result_log = _Below("report", "result_0.txt")
    """The result as a log of MLPerf (``results/report/mllog.py``)."""
    report_schema = _Below("report", "report.schema.json")
    """The JSON Schema of ``report_json`` (``results/report/schema.py``)."""
    result_text = _Below("report", "result.txt")
    """The result in a page of plain text (``results/report/result_text.py``)."""
    report_manifest = _Below("report", "manifest.json")
    """The SHA-256 of every file of the run."""
    signature = _Below("report", "manifest.json.sig")
    """The signature of ``report_manifest``, as ``ssh-keygen -Y sign`` writes it beside it."""

    def journals(self, replica: str | None = None) -> Iterator[Path]:
        """Yield the existing journals in order: of one replica, or of the primary and replicas."""
        yield from sorted(map(Path, self.journal_files(replica)), key=journal_order)

    def journal_files(self, replica: str | None = None) -> Iterator[str]:
        """Yield the names of the same files unordered, which is faster for thousands of files.

        They include files in a replica's folder that are outside the folders of its attempts.

        Raises:
            OSError: a folder cannot be read, or is a link.
        """
        require_no_link(self.replicas)
        if replica is None:
            require_no_link(self.primary_journal.parent)
            if os.path.lexists(self.primary_journal):
                yield str(self.primary_journal)
            replicas = [entry.path for entry in _entries(str(self.replicas)) if entry.is_dir()]
        else:
            replicas = [str(self.replica(replica))]
        for folder in replicas:
            for entry in _entries(folder):
                if entry.is_dir():
                    yield from (e.path for e in _entries(entry.path) if _is_journal(e.name))
                elif _is_journal(entry.name):
                    yield entry.path


def journal_order(journal: Path) -> tuple[str, Incarnation, str]:
    """Return the sort key of a journal: by the numbers of replica and attempt, 10 after 9."""
    attempt = journal.parent
    try:
        return attempt.parent.name, Incarnation.parse(attempt.name), journal.name
    except ValueError:  # The primary's, or in a foreign folder.
        return "", FIRST, str(journal)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """Return the content of a folder whose path has no link; nothing if it does not exist."""
    try:
        with os.scandir(folder) as entries:
            found = list(entries)
    except FileNotFoundError:
        return []
    for entry in found:
        if entry.is_symlink():
            raise NotRegularError(
                "a link; a run contains only regular files and folders", entry.path
            )
    return found


def _is_journal(name: str) -> bool:
    return name.endswith(".jsonl")


def write_whole(path: Path, content: str | bytes, sync: Sync = to_stable_storage) -> None:
    """Write a file atomically: to a temporary name, which is then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}.{get_ident()}")
    data = content.encode() if isinstance(content, str) else content
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            sync(file.fileno())
        try:
            temporary.replace(path)
        except FileNotFoundError:
            # A restarting file server may get the rename twice and refuse the second one.
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path)) from None
    finally:
        temporary.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of a replica's process: the replica and its attempt."""

    replica: str
    incarnation: Incarnation

    @property
    def name(self) -> str:
        """Prefix of this attempt's trial names: ``r0``, or e.g. ``r0-0.1`` for a later attempt."""
        return self.replica if self.incarnation == FIRST else f"{self.replica}-{self.incarnation}"


def seed_of(*parts: object) -> int:
    """Return a 32-bit seed derived from ``parts``: equal parts give equal seeds."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4], "big")


def replica_name(number: int) -> str:
    """Return the name of the replica with this number, counted from 0."""
    return f"r{number}"


def replica_number(name: str) -> int:
    """Return the number of the replica with this name."""
    return int(name.removeprefix("r"))
