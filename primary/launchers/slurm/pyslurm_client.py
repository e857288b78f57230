"""Client that queries SLURM through pyslurm, if a site has built it against its SLURM.

The API is that of pyslurm 25.11 (``Jobs.load``, ``Nodes.load``, ``Partitions.load``,
``slurmctld.Config.load``), available since pyslurm 23.2. Only queries use it. Jobs are submitted
with ``sbatch``, because pyslurm silently skips unknown directives of a batch script. They are
cancelled and requeued with ``scancel`` and ``scontrol``, which handle all elements of an array in
one request, whereas pyslurm needs one request per element.
"""

from __future__ import annotations

import importlib
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeVar

from aiperf_hpc.errors import SchedulerError, SchedulerSilentError, UsageError
from aiperf_hpc.extras import Package, pip_install
from aiperf_hpc.primary.launchers.slurm.client import Call, SlurmClient, silence_in
from aiperf_hpc.primary.launchers.slurm.jobs import INFINITY, Element, Nodes
from aiperf_hpc.system.tools import numbers_in

PYSLURM = Package("pyslurm", pip_install("pyslurm"))
ENDED = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "DEADLINE",
         "OUT_OF_MEMORY")  # fmt: skip
T = TypeVar("T")


class PyslurmClient(SlurmClient):
    """SLURM client whose queries use the library."""

    def __init__(self, call: Call | None = None) -> None:
        """Load pyslurm; ``call`` runs commands. Raises UsageError if it cannot be loaded."""
        super().__init__(call)
        try:
            self._pyslurm: Any = importlib.import_module("pyslurm")
        except ImportError as error:
            raise UsageError(
                f"slurm.client: pyslurm cannot be loaded ({error}); install the version for your "
                f"SLURM ({PYSLURM.remedy}), or set slurm.client=commands"
            ) from None

    def partitions(self) -> list[Nodes]:
        partitions = self._ask(lambda: list(self._pyslurm.Partitions.load().values()))
        nodes = self._ask(lambda: list(self._pyslurm.Nodes.load().values()))
        found = []
        for each in partitions:
            limit = each.max_time_limit
            members = (node for node in nodes if each.name in (node.partitions or []))
            groups = Counter((_node_state(node.state), _gres(node)) for node in members)
            for (state, gres), count in sorted(groups.items()):
                found.append(
                    Nodes(
                        partition=each.name,
                        default=bool(each.is_default),
                        available=each.state == "UP",
                        state=state,
                        count=count,
                        gres=gres,
                        minutes=float(limit) if isinstance(limit, int) else INFINITY,
                    )
                )
        return found

    def find(self, name: str, known: Collection[str] = ()) -> str | None:
        for job in self._records():
            if job.name == name and job.user_id == os.getuid() and job.state not in ENDED:
                number = str(job.array_id or job.id)
                if number not in known:
                    return number
        return None

    def elements(self, *jobs: str) -> list[Element]:
        mine = (each for each in self._records() if str(each.array_id) in jobs)
        return sorted((e for each in mine for e in _elements(each)), key=lambda e: e.number)

    def largest_array(self) -> int:
        return int(self._ask(lambda: self._pyslurm.slurmctld.Config.load().max_array_size))

    def _records(self) -> list[Any]:
        """Return all jobs that the controller knows: pyslurm cannot request a single array."""
        return self._ask(lambda: list(self._pyslurm.Jobs.load().values()))

    def _ask(self, request: Callable[[], T]) -> T:
        try:
            return request()
        except self._pyslurm.RPCError as error:
            lines = str(error).splitlines()
            if (silence := silence_in(lines)) is not None:
                raise SchedulerSilentError(f"pyslurm: {silence}") from None
            raise SchedulerError(f"pyslurm: {'; '.join(lines)}") from None


def _elements(job: Any) -> Iterator[Element]:  # noqa: ANN401 -- pyslurm has no types
    """Yield the elements of one record: waiting elements share a record."""
    reason = "" if job.state_reason in (None, "None") else job.state_reason
    waiting = job.array_tasks_waiting
    numbers = [job.array_task_id] if waiting is None else numbers_in(waiting)
    for number in numbers:
        yield Element(
            number=number,
            job=str(job.array_id),
            state=job.state,
            reason=reason,
            node=job.allocated_nodes or None,
            status=_status(job.exit_code or 0),
            signal=job.exit_code_signal or 0,
            submitted_utc=job.submit_time or None,
            started_utc=job.start_time or None,
        )


def _status(code: int) -> int:
    """Return the exit status from which pyslurm subtracted 128, as for a task ended by a signal.

    It does so for every status from 128; a replica's own are 1, 2 and from 70.
    """
    return code + 128 if 2 < code < 65 else code


def _node_state(text: str) -> str:
    """Return the state in sinfo's form for e.g. IDLE+DRAIN or DOWN+NOT_RESPONDING."""
    base, *flags = text.lower().split("+")
    if "drain" in flags:
        base = "drained"
    if "fail" in flags:
        base = "fail"
    return f"{base}*" if "not_responding" in flags else base


def _gres(node: Any) -> str:  # noqa: ANN401 -- pyslurm has no types
    return ",".join(f"{name}:{count}" for name, count in node.configured_gres.items())
