"""Forgeries of hardware: what a replica ran on, and where."""

from __future__ import annotations

from typing import Any

from tests.forgery.forger import ForgedRun, at, event_of, forgery, like
from tests.support.nodes import node, rank


def _machine(run: ForgedRun) -> dict[str, Any]:
    machine: dict[str, Any] = event_of(run.trainer(), "replica_started")["machine"]
    return machine


def _described(run: ForgedRun) -> None:
    """Let the first replica's first rank have told of itself and its node, as real ones do."""
    lines, machine = run.trainer(), _machine(run)
    described = rank(machine["host"], node()).model_dump(mode="json")
    described["process"]["cores"] = machine["cores"]
    machine["cpu"] = described["node"]["processors"]["model"]
    machine["accelerators"] = [each["model"] for each in described["node"]["accelerators"]]
    event = {"type": "system_described", "rank": 0, "description": described}
    place = at(lines, "dataset_loaded")
    lines.insert(place, like(lines[place], event))


@forgery("hardware", "machines")
def other_processors_than_the_kernel_tells(run: ForgedRun) -> None:
    _described(run)
    _machine(run)["cpu"] = "AMD EPYC 9965 192-Core Processor"


@forgery("hardware", "machines")
def other_accelerators_than_the_driver_tells(run: ForgedRun) -> None:
    _described(run)
    _machine(run)["accelerators"] = ["NVIDIA GeForce RTX 2060"] * 8


@forgery("hardware", "machines")
def more_accelerators_than_the_driver_tells(run: ForgedRun) -> None:
    _described(run)
    _machine(run)["accelerators"] *= 2


@forgery("hardware", "machines")
def fewer_cores_than_the_trainer_had(run: ForgedRun) -> None:
    _described(run)
    event_of(run.trainer(), "system_described")["description"]["process"]["cores"] = [0, 1, 2, 3]


@forgery("hardware", "machines")
def another_host_than_its_rank_was_on(run: ForgedRun) -> None:
    _described(run)
    event_of(run.trainer(), "system_described")["description"]["host"] = "n99"


@forgery("hardware", "launches")
def another_host_than_the_primary_saw(run: ForgedRun) -> None:
    _machine(run)["host"] = "n99"


@forgery("hardware")
def another_processor_in_all_that_is_said_of_it(run: ForgedRun) -> None:
    for name in ("r0", "r1", "r2"):
        event_of(run.trainer(name), "replica_started")["machine"]["cpu"] = "Example CPU 1"


@forgery("hardware")
def accelerators_that_were_not_there(run: ForgedRun) -> None:
    _machine(run)["accelerators"] = ["Example A"] * 8


@forgery("hardware")
def less_memory_than_there_was(run: ForgedRun) -> None:
    _machine(run)["memory_bytes"] //= 2


@forgery("hardware", "config")
def fewer_nodes_in_the_configuration(run: ForgedRun) -> None:
    run.set(lambda values: values.update(nodes=1))
