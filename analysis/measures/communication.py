"""How much of training is communication between ranks, and what more ranks bring."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from aiperf_hpc.analysis.measured import NotMeasuredError
from aiperf_hpc.trial import StepPart


class CommunicationPart(StrEnum):
    """The parts of an all-reduce, as HPC AI500 V2.0's table of communication has them.

    It reads them off Horovod's timeline, whose names these are; ``copy`` is in that timeline
    (MEMCPY_IN_FUSION_BUFFER, MEMCPY_OUT_FUSION_BUFFER) and not in the table.
    """

    NEGOTIATE = "negotiate"
    """Until all ranks are known to have their gradients."""
    WAIT_FOR_DATA = "wait for data"
    """Until the framework has computed a gradient that it has handed over already."""
    QUEUE = "queue"
    """Until the back end has finished earlier reductions and takes this one."""
    REDUCE = "reduce"
    COPY = "copy"
    """Into the buffer that is reduced, and out of it."""


PARTS: Mapping[CommunicationPart, tuple[StepPart, ...]] = {
    CommunicationPart.NEGOTIATE: (StepPart.WAIT,),
    CommunicationPart.WAIT_FOR_DATA: (),
    CommunicationPart.QUEUE: (StepPart.QUEUE,),
    CommunicationPart.REDUCE: (StepPart.REDUCE,),
    CommunicationPart.COPY: (StepPart.COPY_IN, StepPart.COPY_OUT),
}
"""Which parts of a recorded step each of them is.

A rank that has given all its gradients waits until all others have, which they agree upon: that
is what Horovod calls negotiating. There is no wait for data: a gradient is given once it is
computed. Where an accelerator's host is ahead of it, copying in ends that wait and has it.
"""

NO_WAIT_FOR_DATA = (
    "wait for data is not recorded: a gradient is handed over once it is computed; on an "
    "accelerator the wait for that is part of copy"
)


def communication_parts(
    seconds: Mapping[StepPart, float],
) -> dict[CommunicationPart, float | None]:
    """Return the seconds of each part of communication; None for one that is not recorded.

    Source: HPC AI500 V2.0 (Jiang et al. 2020, arXiv 2007.00279), its table of communication.

    Args:
        seconds: of each part of training steps, as the mean over ranks.
    """
    return {
        part: sum(seconds.get(of, 0.0) for of in recorded) if recorded else None
        for part, recorded in PARTS.items()
    }


def communication_seconds(seconds: Mapping[StepPart, float]) -> float:
    """Return the seconds of steps that are no computation: what the backward pass did not hide.

    Source: MLBench's split of a step; HPC AI500 V2.0's table of communication.

    Args:
        seconds: of each part of training steps, as the mean over ranks.
    """
    return sum(time for part, time in seconds.items() if part is not StepPart.COMPUTE)


def compute_communication_ratio(compute: float, communication: float) -> float:
    """Return computation over communication, seconds over seconds: a pure number.

    Source: MLBench (compute/communication ratio of each worker).

    Raises:
        NotMeasuredError: nothing was communicated.
    """
    if communication <= 0.0:
        raise NotMeasuredError("no time was spent on communication, so there is no ratio to it")
    return compute / communication


def communication_share(compute: float, communication: float) -> float:
    """Return the share of steps that is communication: between 0 and 1.

    Source: HPC AI500 V2.0, its table of communication.

    Raises:
        NotMeasuredError: the steps took no time.
    """
    if compute + communication <= 0.0:
        raise NotMeasuredError("the recorded steps took no time")
    return communication / (compute + communication)
