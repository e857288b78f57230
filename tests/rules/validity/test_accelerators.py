"""What of its nodes' accelerators a run uses, by what its ranks told."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.official_run import official_evidence

from aiperf_hpc.rules.validity.replicas import AcceleratorUse, accelerator_use
from aiperf_hpc.system.description import Accelerator, NodeDescription

FOUR = NodeDescription(
    accelerators=tuple(Accelerator(vendor="Example", model="A", index=n) for n in range(4))
)


def use(
    root: Path, bound: list[str], node: NodeDescription = FOUR, *, on_cpus: bool = False
) -> AcceleratorUse:
    """Return what a replica of so many ranks on one node uses, each bound to one."""
    replica = official_evidence(root).history.replicas["r0"]
    utc, started = replica.all_started[-1]
    machine = started.machine.model_copy(update={"accelerators": ()})
    changes = {"hosts": ("n-r0",) * len(bound), "machine": machine}
    replica.all_started[-1] = utc, started.model_copy(update=changes)
    first = replica.described[0]
    for rank, name in enumerate(bound):
        environment = {"SLURM_GPUS_ON_NODE": "4", "SLURM_STEP_GPUS": name.rpartition("/")[0]}
        process = first.process.model_copy(
            update={"accelerator": name.rpartition("/")[2] or None, "environment": environment}
        )
        told = {"process": process, "node": node if rank == 0 else None}
        replica.described[rank] = first.model_copy(update=told)
    return accelerator_use([replica], on_cpus=on_cpus)


def idle(number: int, uses: int) -> str:
    return f"{number} of 4 accelerators are idle: n-r0 has 4 and uses {uses}"


@pytest.mark.parametrize(
    ("bound", "line", "reasons"),
    [
        (["a", "b", "c", "d"], "", []),
        (["", "", "", ""], "", []),  # Records of before there was binding do not say.
        (["0/x", "1/x", "2/x", "3/x"], "", []),  # Bound by SLURM, each within its own cgroup.
        (["a", "b"], idle(2, 2), ["n-r0 has 4 accelerators and 2 ranks"]),
        (["a", "a", "b", "b"], idle(2, 2), ["n-r0 has 4 accelerators and 4 ranks, which use 2"]),
    ],
)
def test_what_no_rank_computes_on_is_idle(
    tmp_path: Path, bound: list[str], line: str, reasons: list[str]
) -> None:
    found = use(tmp_path, bound)
    assert (found.line(), list(found.reasons())) == (line, reasons)


def test_the_scheduler_tells_accelerators_and_a_run_on_cpus_uses_none(tmp_path: Path) -> None:
    assert use(tmp_path / "untold", ["a"], NodeDescription()).line() == idle(3, 1)
    on_cpus = use(tmp_path / "cpus", ["", "", "", ""], on_cpus=True)
    assert list(on_cpus.reasons()) == ["n-r0 has 4 accelerators and 4 ranks, which use 0"]
