"""A launcher that reports the states that a test gives it, and remembers its calls."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from aiperf_hpc.errors import UsageError
from aiperf_hpc.primary.launchers.base import Launcher, ReplicaState
from aiperf_hpc.trial import JobPhase

RUNNING = ReplicaState(JobPhase.RUNNING, "n1")
PENDING = ReplicaState(JobPhase.PENDING)
DONE = ReplicaState(JobPhase.DONE, "n1")
MOST_NODES = 8


class ScriptedLauncher(Launcher):
    """An elastic launcher of eight nodes that, like SLURM's, is not `exact`."""

    name = "scripted"

    def __init__(self, *states: dict[str, ReplicaState]) -> None:
        """Report these states in turn, the last ones for ever."""
        self.left = list(states)
        self.calls: list[object] = []
        """The name of each request, with its replicas if it has any."""
        self.when_stopped: dict[str, ReplicaState] | None = None
        """The states once it was asked to stop, if they change then."""
        self.refusal = ""
        """Why no replica can be added."""

    def start(self) -> dict[str, str]:
        return {name: f"17_{name[1:]}" for name in self.left[0]}

    def states(self) -> dict[str, ReplicaState]:
        if self.when_stopped is not None and "stop" in self.calls:
            return self.when_stopped
        return self.left.pop(0) if len(self.left) > 1 else self.left[0]

    def ask_to_stop(self) -> None:
        self.calls.append("stop")

    def close(self) -> None:
        self.calls.append("close")

    def kill(self) -> None:
        self.calls.append("kill")

    def check(self, nodes: int) -> None:
        if nodes > MOST_NODES:
            raise UsageError(f"--nodes {nodes}: partition 'bench' has {MOST_NODES} nodes")

    def add(self, replicas: Sequence[str]) -> dict[str, str]:
        self.calls.append(("add", tuple(replicas)))
        if self.refusal:
            raise UsageError(self.refusal)
        self.left = [self.left[0] | dict.fromkeys(replicas, PENDING)]
        return {name: f"18_{name}" for name in replicas}

    def release(self, replicas: Collection[str]) -> None:
        self.calls.append(("release", tuple(replicas)))

    def end(self, replicas: Collection[str]) -> None:
        self.calls.append(("end", tuple(replicas)))
