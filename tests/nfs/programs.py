"""Programs of the clients, with the package's own code; each ends with one line of JSON.

python -m tests.nfs.programs PROGRAM ARGUMENT...
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from aiperf_hpc.errors import RunDirectoryError, StorageError
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.journal import JournalReader, JournalWriter
from aiperf_hpc.run.paths import RunPaths, write_whole
from aiperf_hpc.run.records import Heartbeat, Proposed, ReplicaEnded, RunEnded, StopRequested
from aiperf_hpc.run.requests import requested_stop
from aiperf_hpc.run.storage import BackoffRetry, GrowingFile
from aiperf_hpc.trial import TimePhase

from .guest import SHARED, on_host

RUN = RunPaths(SHARED / "run")


def endless() -> BackoffRetry:
    """Return a patience that never gives up."""
    return BackoffRetry(lambda: False)


def _size(number: int, most: int) -> int:
    return number * 7919 % most


def write(replica: str, count: str, pause: str) -> dict[str, object]:
    """Write a replica's journal: so many records, of sizes that differ, numbered."""
    patience, slowest = endless(), 0.0
    with JournalWriter(RUN.replica_journal(replica), retry=patience) as journal:
        for number in range(int(count)):
            began = time.monotonic()
            journal.append(StopRequested(reason=f"{number} " + "x" * _size(number, 1000)))
            slowest = max(slowest, time.monotonic() - began)
            time.sleep(float(pause))
        journal.append(ReplicaEnded(reason="done"))
    return {"waited": patience.waited, "slowest": slowest}


def tail(replicas: str) -> dict[str, object]:
    """Follow journals as a run's readers do, until all their writers have said that they end."""
    history = RunHistory(RUN, retry=endless())
    names, looks = replicas.split(","), 0
    while not all(n in history.replicas and history.replicas[n].ended for n in names):
        history.refresh()
        looks += 1
    return {
        "looks": looks,
        "records": history.record_count,
        "problems": [str(problem) for problem in history.problems],
    }


def flood(replica: str, seconds: str) -> int:
    """Write a journal as fast as can be; return how many records."""
    path, number, end = RUN.replica_journal(replica), 0, time.monotonic() + float(seconds)
    path.parent.mkdir(parents=True, exist_ok=True)
    file = GrowingFile(path)
    while time.monotonic() < end:
        text = b"f" * _size(number, 1000)
        file.add(
            b'{"seq":%d,"utc":0,"mono":0,"event":{"type":"stop_requested","reason":"%s"}}\n'
            % (number, text)
        )
        number += 1
    file.add(b'{"seq":%d,"utc":0,"mono":0,"event":{"type":"run_ended","reason":""}}\n' % number)
    return number + 1


def follow(replica: str, pause: str) -> dict[str, object]:
    """Read a journal to its last record; say how often this host's cache had to be passed."""
    reader, found, past = JournalReader(RUN.replica_journal(replica)), 0, 0
    really = os.posix_fadvise

    def counted(file: int, start: int, length: int, advice: int) -> None:
        nonlocal past
        past += 1
        really(file, start, length, advice)

    os.posix_fadvise = counted
    ended = False
    while not ended:
        for record in reader.read():
            found += 1
            ended = isinstance(record.event, RunEnded)
        time.sleep(float(pause))
    return {"records": found, "past": past, "problems": [p.what for p in reader.problems]}


def glance(replica: str, pause: str) -> dict[str, int]:
    """Read a journal as any program would; say how often zeros were in it, and how often not."""
    path, offset, looks, zeros, content = RUN.replica_journal(replica), 0, 0, 0, b""
    while b"run_ended" not in content:
        with path.open("rb", buffering=0) as file:
            file.seek(offset)
            content = file.readall()
        looks += 1
        zeros += b"\0" in content
        offset += content.rfind(b"\n") + 1
        time.sleep(float(pause))
    return {"looks": looks, "zeros": zeros}


def probe(name: str, seconds: str) -> dict[str, Any]:
    """Append to a file and look at it as any program would; say what calls fail and how long."""
    path, line = SHARED / name, b"l" * 107 + b"\n"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    calls: dict[str, Callable[[], object]] = {
        "write": lambda: os.write(file, line),
        "fsync": lambda: os.fsync(file),
        "fstat": lambda: os.fstat(file),
        "open": path.read_bytes,
        "list": lambda: os.listdir(SHARED),
    }
    longest = dict.fromkeys(calls, 0.0)
    errors: Counter[str] = Counter()
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        for call, action in calls.items():
            began = time.monotonic()
            try:
                action()
            except OSError as error:
                errors[f"{call} {errno.errorcode[error.errno or 0]}"] += 1
            longest[call] = max(longest[call], time.monotonic() - began)
        time.sleep(0.3)
    return {"longest": longest, "errors": errors, "zeros": path.read_bytes().count(b"\0")}


def count(replica: str) -> int:
    """Return how many numbered records a replica's journal holds: each once, in order."""
    reader = JournalReader(RUN.replica_journal(replica))
    found = [r.event for r in reader.read()]
    assert not reader.problems, reader.problems
    assert not reader.torn
    numbers = [int(event.reason.split()[0]) for event in found if isinstance(event, StopRequested)]
    assert numbers == list(range(len(numbers))), numbers
    return len(numbers)


def replace(name: str, seconds: str) -> dict[str, object]:
    """Write one file again and again, whole."""
    end, number = time.monotonic() + float(seconds), 0
    while time.monotonic() < end:
        number += 1
        body = json.dumps([number, "y" * _size(number, 200_000)])
        write_whole(SHARED / name, f"{hashlib.sha256(body.encode()).hexdigest()}\n{body}")
    return {"written": number}


def read(name: str, seconds: str) -> dict[str, object]:
    """Read that file again and again; every reading is one of the versions, whole."""
    end, looks, last = time.monotonic() + float(seconds), 0, 0
    errors: Counter[str] = Counter()
    while time.monotonic() < end:
        try:
            content = (SHARED / name).read_bytes()
        except OSError as error:
            errors[errno.errorcode[error.errno or 0]] += 1
            continue
        digest, _, body = content.partition(b"\n")
        assert hashlib.sha256(body).hexdigest() == digest.decode(), content[:200]
        number = json.loads(body)[0]
        assert number >= last, (number, last)
        looks, last = looks + 1, number
    return {"looks": looks, "last": last, "errors": errors}


def claim(count: str) -> list[bool]:
    """Make run directories that others try to make at the same time; say which were made."""
    from aiperf_hpc.config import load_config
    from aiperf_hpc.primary.control.prepare import (
        describe_dataset,
        make_manifest,
        make_run_directory,
    )

    config = load_config("simulated")
    manifest = make_manifest(config, 1, 1.0, "local")
    dataset, made = describe_dataset(config.dataset), []
    meet("ready")
    for number in range(int(count)):
        try:
            make_run_directory(manifest, SHARED / "claims" / str(number), dataset)
        except RunDirectoryError:
            made.append(False)
        else:
            made.append(True)
    return made


def take_in_hand(count: str) -> list[bool]:
    """Take runs in hand that another host wants at the same time; say which were had."""
    refusals = []
    for number in range(int(count)):
        meet(f"races/{number}")
        refusals.append(_refusal(SHARED / "races" / str(number) / "run"))
    meet("raced")  # What it has it has for as long as it lives.
    for said in refusals:
        assert f" on {os.uname().nodename} " not in said, "refused by itself"
    return [not said for said in refusals]


def _refusal(run: Path) -> str:
    """Take a run; return why not, or nothing."""
    from aiperf_hpc.primary.control.claim import ClaimedError, take

    try:
        take(RunHistory(RunPaths(run)), 1.0, "resume")
    except ClaimedError as error:
        return str(error)
    return ""


def meet(name: str) -> None:
    """Wait for the other of two hosts."""
    write_whole(SHARED / name / os.uname().nodename, "")
    while len([host for host in os.listdir(SHARED / name) if host.startswith("n")]) < 2:
        time.sleep(0.01)


def await_stop() -> float:
    """Look for a stop request, as replicas do, from before it is there; return when it is seen."""
    while requested_stop(RUN.stop_request) is None:
        time.sleep(1.0)
    return time.time()


def request_stop() -> float:
    """Ask for a stop, as ``aiperf stop`` does; return when."""
    write_whole(RUN.stop_request, "please\n")
    return time.time()


def take() -> dict[str, object]:
    """Take a candidate that is proposed but not to be seen yet, as a replica does."""
    from aiperf_hpc.config import load_config
    from aiperf_hpc.replica.context import ReplicaContext
    from aiperf_hpc.replica.runtime.stopping import StopFlag
    from aiperf_hpc.replica.trials.planner import CandidateQueue
    from aiperf_hpc.run.paths import FIRST, Identity

    history, looks = RunHistory(RUN, replica="r0"), 0
    with JournalWriter(RUN.root / os.uname().nodename) as journal:
        context = ReplicaContext(
            config=load_config("simulated"),
            paths=RUN,
            who=Identity("r0", FIRST),
            journal=journal,
            stop=StopFlag(float("inf"), RUN.stop_request),
            retry=endless(),
        )
        stock = CandidateQueue(context, history)
        while (candidate := stock.take()) is None:
            looks += 1
            time.sleep(0.5)
    return {"utc": time.time(), "looks": looks, "proposal": candidate.proposal}


def propose(delay: str) -> float:
    """Record a candidate some time before its file is there; return when that is."""
    import numpy as np

    from aiperf_hpc.config import load_config
    from aiperf_hpc.morphism.operators.morphisms import Deeper
    from aiperf_hpc.morphism.weights.weight_file import initial_weights, save_checkpoint
    from aiperf_hpc.primary.control.prepare import describe_dataset
    from aiperf_hpc.workloads.registry import initial_graph

    config, rng = load_config("simulated"), np.random.default_rng(1)
    parent = initial_graph(config, describe_dataset(config.dataset))
    step = Deeper.sample(parent, rng)
    graph = step.child(parent)
    with JournalWriter(RUN.search_journal("r0", 0)) as journal:
        journal.append(
            Proposed(
                proposal="p1", graph=graph.hash, parent="t1", morphisms=(step.to_data(),), seed=1,
                seconds=0.0,
            )
        )  # fmt: skip
    time.sleep(float(delay))
    save_checkpoint(RUN.candidate("p1"), graph, initial_weights(graph, rng))
    return time.time()


def problems(replica: str) -> list[str]:
    """Return what a reader finds wrong with a journal."""
    reader = JournalReader(RUN.replica_journal(replica))
    for _ in reader.read():
        pass
    return [problem.what for problem in reader.problems]


def waits(replica: str) -> list[float]:
    """Return how long a replica says at each beat that it has waited for its storage."""
    found = [record.event for record in JournalReader(RUN.replica_journal(replica)).read()]
    return [event.storage_wait_seconds for event in found if isinstance(event, Heartbeat)]


def work(replica: str, seconds: str) -> dict[str, object]:
    """Do what a replica does to its storage: records, whole files, a pulse beside them."""
    from aiperf_hpc.replica.host import Host

    patience, count = endless(), 0
    end = time.monotonic() + float(seconds)
    with JournalWriter(RUN.replica_journal(replica), retry=patience) as journal:

        def beat() -> None:
            journal.append(
                Heartbeat(
                    phase=TimePhase.TRAIN,
                    cpu_percent=0.0,
                    memory_bytes=0,
                    storage_wait_seconds=patience.waited,
                )
            )

        with Host(1).every(0.5, beat, lambda reason: None):
            while time.monotonic() < end:
                journal.append(StopRequested(reason=f"{count} {'z' * 500}"))
                path = RUN.candidate(f"{replica}-{count % 3}")
                patience(partial(write_whole, path, f"{count}\n" * 30_000), str(path))
                count += 1
        beat()
    return {"count": count, "waited": patience.waited}


def primary(run: str, r0: str, r1: str, *arguments: str) -> int:
    """Conduct a benchmark run whose two replicas are on other hosts."""
    from aiperf_hpc import cli
    from aiperf_hpc.primary.launchers import base as launching

    hosts, command = {"r0": int(r0), "r1": int(r1)}, launching.replica_command

    def elsewhere(
        paths: RunPaths, replica: str, cores: tuple[int, ...], sharing: int, launch: int
    ) -> list[str]:
        return on_host(hosts[replica], *command(paths, replica, cores, sharing, launch))

    launching.replica_command = elsewhere
    return cli.main(
        ["start", "--nodes", "2", "--launcher", "local", "--config", "simulated", "--yes",
         "--run-dir", str(SHARED / run), *arguments]
    )  # fmt: skip


def verify(run: str) -> dict[str, object]:
    """Say what ``aiperf verify`` finds, and what the run's records tell of its storage."""
    from aiperf_hpc import cli

    history = RunHistory.read(RunPaths(SHARED / run))
    replicas = history.replicas.values()
    return {
        "status": cli.main(["verify", str(SHARED / run)]),
        "records": history.record_count,
        "trials": len(history.trials),
        "waits": {r.id: r.heartbeat.storage_wait_seconds for r in replicas if r.heartbeat},
        "ended": {r.id: r.ended for r in replicas},
        "restarts": {r.id: r.restarts for r in replicas},
        "wrong": [
            *(str(problem) for problem in history.problems),
            *(f"{path} is torn" for path in history.torn),
            *history.search_failures,
            *history.rejected.values(),
        ],
    }


def keep(replica: str, seconds: str) -> str:
    """Write a journal until it cannot be; return why."""
    end = time.monotonic() + float(seconds)
    number = 0
    with JournalWriter(RUN.replica_journal(replica), retry=endless()) as journal:
        while time.monotonic() < end:
            try:
                journal.append(StopRequested(reason=f"{number} {'w' * 2000}"))
            except StorageError as error:
                return str(error)
            number += 1
            time.sleep(0.2)
    return f"{number}"


def main() -> None:
    """Run one program."""
    name, *arguments = sys.argv[1:]
    program: Callable[..., Any] = globals()[name]
    sys.stdout.write(json.dumps(program(*arguments)) + "\n")


if __name__ == "__main__":
    main()
