"""The faults, and when a run has recovered from each. A seeded generator samples them."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from tests.chaos.tormented import Fault, TormentedRun
from tests.slurm.test_faults import kill_job, kill_step, pid
from tests.support.processes import kill, visible

from aiperf_hpc.deploy.local_cluster import (
    cut_link,
    heal_link,
    pid_of,
    start_slurmctld,
    start_slurmd,
)

LEAST_NODES, MOST_NODES = 2, 4
MOST_AWAY = 2
"""Nodes that may be away at once, of four for three replicas."""
Make = Callable[[TormentedRun, random.Random], Fault | None]


def draw(run: TormentedRun, rng: random.Random, kinds: list[str]) -> Fault | None:
    """Do something to a run; None where what was drawn cannot be done just now."""
    weights = [KINDS[kind][0] for kind in kinds]
    (kind,) = rng.choices(kinds, weights)
    fault = KINDS[kind][1](run, rng)
    if fault is not None:
        fault.kind = kind
        run.faults.append(fault)
    return fault


def _victim(run: TormentedRun, rng: random.Random) -> str | None:
    names = run.at_work()
    return rng.choice(names) if names else None


def _of_replica(make: Callable[[TormentedRun, random.Random, str], Fault | None]) -> Make:
    """Return a fault of a replica that is at work, which is drawn, too."""

    def drawn(run: TormentedRun, rng: random.Random) -> Fault | None:
        victim = _victim(run, rng)
        return None if victim is None else make(run, rng, victim)

    return drawn


def _after(run: TormentedRun, seconds: float, again: Callable[[], None]) -> str:
    """Have something put right after some seconds; return how long that is."""
    run.later(seconds, again)
    return f"for {seconds:.0f} s"


def _goes_on(victim: str, detail: str = "") -> Fault:
    """Return a fault that is over when its victim, whichever life of it, is credited again."""
    at = time.time()
    return Fault("", victim, at, lambda run: run.credited_since(at, victim), detail)


def _lives_again(run: TormentedRun, victim: str) -> Fault:
    """Return a fault that is over when a later life of its victim is credited."""
    life = run.life(victim)
    return Fault("", victim, time.time(), lambda run: run.life_credited(victim, life))


@_of_replica
def _kill_replica(run: TormentedRun, _: random.Random, victim: str) -> Fault:
    fault = _lives_again(run, victim)
    kill([pid(run.history, victim)])
    return fault


def _workers(run: TormentedRun, replica: str) -> set[int]:
    """Return the processes of the search workers of a replica's latest life."""
    words = [b"aiperf_hpc.replica.search.worker", os.fsencode(run.paths.root)]
    words += [replica.encode(), str(run.life(replica)).encode()]
    return {n for n, command, _ in visible() if set(words) <= set(command.split(b"\0"))}


@_of_replica
def _kill_worker(run: TormentedRun, _: random.Random, victim: str) -> Fault | None:
    before = _workers(run, victim)
    if not before:
        return None
    kill([min(before)])
    return Fault("", victim, time.time(), lambda run: bool(_workers(run, victim) - before))


def _kill_primary(run: TormentedRun, rng: random.Random) -> Fault | None:
    if "primary" in run.busy:
        return None
    launches = len(run.history.run_starts)
    run.busy.add("primary")
    run.kill_primary()
    run.later(rng.uniform(0.0, 4.0), run.resume)
    return Fault("", "", time.time(), lambda run: any(
        life.launch >= launches and run.credited_since(fault_at, name)
        for fault_at in (run.history.run_starts[-1][0],)
        for name, replica in run.history.replicas.items()
        for life in replica.starts
    ))  # fmt: skip


def _node(run: TormentedRun, rng: random.Random) -> tuple[str, str] | None:
    """Return a replica and its node, which may be taken away."""
    victim = _victim(run, rng)
    node = run.node(victim) if victim else None
    if victim is None or node is None or len(run.away) >= MOST_AWAY:
        return None
    run.away.add(node)
    return victim, node


def _kill_slurmd(run: TormentedRun, rng: random.Random, *, steps: bool) -> Fault | None:
    found = _node(run, rng)
    if found is None:
        return None
    victim, node = found
    folder = run.cluster.folder
    os.kill(pid_of(folder, node), signal.SIGKILL)
    fault = _lives_again(run, victim) if steps else _goes_on(victim)
    if steps and run.launcher == "array":
        kill_job(run.cluster, run.history, victim)
    elif steps:
        with suppress(OSError):  # It ended meanwhile.
            kill_step(run.cluster, pid(run.history, victim))

    def again() -> None:
        start_slurmd(folder, node)
        run.away.discard(node)

    fault.detail = f"{node}, away {_after(run, rng.uniform(2.0, 30.0), again)}"
    return fault


def _cut_link(run: TormentedRun, rng: random.Random) -> Fault | None:
    found = _node(run, rng)
    if found is None:
        return None
    victim, node = found
    folder = run.cluster.folder
    cut_link(folder, node)

    def again() -> None:
        heal_link(folder, node)
        run.away.discard(node)

    return _goes_on(victim, f"{node}, cut {_after(run, rng.uniform(3.0, 40.0), again)}")


def _kill_controller(run: TormentedRun, rng: random.Random) -> Fault | None:
    if "controller" in run.busy:
        return None
    run.busy.add("controller")
    folder = run.cluster.folder
    os.kill(pid_of(folder, "slurmctld"), signal.SIGKILL)

    def again() -> None:
        start_slurmctld(folder)
        run.busy.discard("controller")

    away = _after(run, rng.uniform(1.0, 15.0), again)
    # The primary, too, must have it back.
    return Fault("", "", time.time(), lambda run: (
        "controller" not in run.busy and run.history.scheduler_problem is None
    ), f"away {away}")  # fmt: skip


def _on_element(*command: str) -> Make:
    """Return a fault by a command of SLURM's on a replica's element."""

    @_of_replica
    def make(run: TormentedRun, _: random.Random, victim: str) -> Fault | None:
        job = run.history.replicas[victim].job
        if job is None or "controller" in run.busy:
            return None
        # It is back if a primary that is resumed launches all replicas again, too.
        fault = _lives_again(run, victim)
        done = run.cluster.run(*command, job)
        return fault if done.returncode == 0 else None

    return make


def _fill_disk(run: TormentedRun, rng: random.Random) -> Fault | None:
    if "disk" in run.busy:
        return None
    run.busy.add("disk")
    filler = run.paths.root.parent / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(bytes(2**20)):
            pass

    def again() -> None:
        filler.unlink()
        run.busy.discard("disk")

    full = _after(run, rng.uniform(2.0, 8.0), again)
    at = time.time()
    return Fault("", "", at, lambda run: (
        "disk" not in run.busy and run.credited_since(at)
    ), f"full {full}")  # fmt: skip


@_of_replica
def _stop_replica(run: TormentedRun, rng: random.Random, victim: str) -> Fault:
    process = pid(run.history, victim)
    kill([process], signal.SIGSTOP)
    run.busy.add(f"stopped {victim}")

    def again() -> None:
        run.busy.discard(f"stopped {victim}")
        kill([process], signal.SIGCONT)

    return _goes_on(victim, f"stopped {_after(run, rng.uniform(2.0, 15.0), again)}")


@_of_replica
def _cancel_step(run: TormentedRun, rng: random.Random, victim: str) -> Fault | None:
    del rng
    if "controller" in run.busy:
        return None
    fault = _lives_again(run, victim)
    named = f"-{victim}"
    for line in run.cluster.run("squeue", "--steps", "-h", "-o", "%i|%j").stdout.splitlines():
        step, _, name = line.partition("|")
        if name.endswith(named):
            done = run.cluster.run("scancel", "--signal=KILL", step)
            return fault if done.returncode == 0 else None
    return None


def _scale(run: TormentedRun, rng: random.Random) -> Fault | None:
    """Ask for other nodes: replicas join, or leave in order, and those that left may return."""
    if "controller" in run.busy:  # It would be waited for, and its return would have to wait.
        return None
    now = run.nodes
    nodes = rng.choice([n for n in range(LEAST_NODES, MOST_NODES + 1) if n != now])
    done = run.cluster.aiperf("scale", run.paths.root, "--nodes", nodes)
    if done.returncode != 0:
        run.refusals.append(done.stderr.strip())
        return None
    at = time.time()
    run.nodes = nodes

    def there(run: TormentedRun) -> bool:
        # Asked for something else meanwhile, it is that which is waited for.
        left = [run.given_up(f"r{number}") for number in range(nodes, now)]
        joined = [run.credited_since(at, f"r{number}") for number in range(now, nodes)]
        return run.nodes != nodes or (all(left) and all(joined))

    return Fault("", "", at, there, f"{now} to {nodes}")


KINDS: dict[str, tuple[float, Make]] = {
    "replica killed": (4.0, _kill_replica),
    "search worker killed": (4.0, _kill_worker),
    "primary killed, resumed": (2.0, _kill_primary),
    "node killed": (2.0, partial(_kill_slurmd, steps=True)),
    "slurmd killed, its steps not": (2.0, partial(_kill_slurmd, steps=False)),
    "link cut, healed": (2.0, _cut_link),
    "slurmctld killed, restarted": (2.0, _kill_controller),
    "scontrol requeue": (3.0, _on_element("scontrol", "requeue")),
    "scancel of one element": (0.5, _on_element("scancel")),
    "disk full": (2.0, _fill_disk),
    "replica stopped, continued": (3.0, _stop_replica),
    "step killed": (3.0, _cancel_step),
    "nodes asked for or given back": (3.0, _scale),
}
"""How often each is drawn, in proportion, and what it does."""
OF_AN_ARRAY = {"scontrol requeue", "scancel of one element"}
OF_STEPS = {"step killed"}
SEPARATE_HOSTS = {"link cut, healed"}
OWN_DISK = {"disk full"}
