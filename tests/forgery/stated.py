"""Forgeries of what a run states of its dataset, hardware and software."""

from __future__ import annotations

from typing import Any

from tests.forgery.forger import (
    REPLICAS,
    Forge,
    ForgedRun,
    at,
    both,
    event,
    event_of,
    forgeries,
    keep_the_digest,
    like,
    of,
    run_yaml,
    settings,
    without,
)
from tests.support.nodes import node, rank

from aiperf_hpc.datasets import PINNED


def _dataset(**values: Any) -> Forge:  # noqa: ANN401 -- fields of a dataset
    return event("dataset_loaded", "dataset", REPLICAS, **values)


def _another_at_the_start(run: ForgedRun) -> None:
    dataset = {**event_of(run.trainer(), "dataset_loaded")["dataset"], "sha256": "1" * 64}
    run_yaml(dataset=dataset)(run)


def _digits(sha256: str) -> Forge:
    """Return a change after which all replicas state the dataset digits with sizes of another."""
    return both(settings("dataset", name="digits"), _dataset(name="digits", sha256=sha256))


forgeries(
    "dataset",
    {
        "another dataset on one replica":
            ("dataset", event("dataset_loaded", "dataset", sha256="0" * 64)),
        "another name in the configuration": ("dataset", settings("dataset", name="digits")),
        "another name on all replicas": ("dataset", _dataset(name="imagenet")),
        "more samples than there are": ("samples", _dataset(train_samples=4096)),
        "fewer validation samples than were evaluated":
            ("evaluations", _dataset(validation_samples=256)),
        # Which dataset is official, the divisions' rules say.
        "another digest on all replicas": (None, _dataset(sha256="0" * 64)),
        "more classes than there are": ("graphs", _dataset(classes=1000)),
        "larger images than there are":
            ("graphs", event("dataset_loaded", "dataset.inputs.image", REPLICAS,
                             shape=[64, 64, 3])),
        "a dataset that is not the one of the start": ("dataset", _another_at_the_start),
        "more digits than there are": ("dataset", _digits(PINNED["digits"].sha256)),
        "digits of an unknown digest": ("dataset", _digits("0" * 64)),
        "the digits' digest under another name":
            ("dataset", both(settings("dataset", name="imagenet", path="/data"),
                             _dataset(name="imagenet", sha256=PINNED["digits"].sha256))),
        "no replica that loaded a dataset": ("graphs", without("dataset_loaded", REPLICAS)),
    },
)  # fmt: skip


def _machine(run: ForgedRun) -> dict[str, Any]:
    machine: dict[str, Any] = event_of(run.trainer(), "replica_started")["machine"]
    return machine


def _described(run: ForgedRun) -> None:
    """Let the first replica's first rank have described itself and its node, as real ones do."""
    lines, machine = run.trainer(), _machine(run)
    described = rank(machine["host"], node()).model_dump(mode="json")
    described["process"]["cores"] = machine["cores"]
    machine["cpu"] = described["node"]["processors"]["model"]
    machine["accelerators"] = [each["model"] for each in described["node"]["accelerators"]]
    event = {"type": "system_described", "rank": 0, "description": described}
    place = at(lines, "dataset_loaded")
    lines.insert(place, like(lines[place], event))


def _machine_with(**values: Any) -> Forge:  # noqa: ANN401 -- fields of a machine
    return event("replica_started", "machine", **values)


def _twice_the_accelerators(run: ForgedRun) -> None:
    _machine(run)["accelerators"] *= 2


def _half_the_memory(run: ForgedRun) -> None:
    _machine(run)["memory_bytes"] //= 2


forgeries(
    "hardware",
    {
        "other processors than the kernel tells":
            ("machines", both(_described, _machine_with(cpu="AMD EPYC 9965 192-Core Processor"))),
        "other accelerators than the driver tells":
            ("machines",
             both(_described, _machine_with(accelerators=["NVIDIA GeForce RTX 2060"] * 8))),
        "more accelerators than the driver tells":
            ("machines", both(_described, _twice_the_accelerators)),
        "fewer cores than the trainer had":
            ("machines",
             both(_described,
                  event("system_described", "description.process", cores=[0, 1, 2, 3]))),
        "another host than its rank was on":
            ("machines", both(_described, event("system_described", "description", host="n99"))),
        "another host than the primary saw": ("launches", _machine_with(host="n99")),
        "another processor in all that is said of it":
            (None, event("replica_started", "machine", REPLICAS, cpu="Example CPU 1")),
        "accelerators that were not there": (None, _machine_with(accelerators=["Example A"] * 8)),
        "less memory than there was": (None, _half_the_memory),
        "fewer nodes in the configuration": ("config", run_yaml(nodes=1)),
    },
)  # fmt: skip


def _other_version(run: ForgedRun) -> None:
    run.set(lambda stated: stated["versions"].update({"aiperf-hpc": "9.9"}))


def _eight_bits(run: ForgedRun) -> None:
    for line in of(run.trainer(), "trial_started"):
        line["event"]["hyperparameters"]["precision"] = "fp8"


def _other_seed(run: ForgedRun) -> None:
    run.set(lambda stated: stated["config"].update(seed=1))


forgeries(
    "software",
    {
        "another engine in the configuration": ("config", settings("engine", name="torch")),
        "another engine on a replica": ("config", event("replica_started", engine="torch")),
        "another engine everywhere":
            ("config", both(settings("engine", name="torch"),
                            event("replica_started", "", REPLICAS, engine="torch"))),
        "another launcher": ("config", run_yaml(launcher="local")),
        "another name of the run": ("config", run_yaml(run_id="the best run")),
        "another commit": (None, run_yaml(commit="f" * 40)),
        "another version of the benchmark": (None, _other_version),
        "another version on all replicas":
            (None, event("replica_started", "machine.versions", REPLICAS, numpy="9.9")),
        # ``run.yaml`` was changed, and not the digest that the primary stated.
        "a setting that was another":
            ("config", both(settings("hpo", startup_trials=1), keep_the_digest)),
        "a setting that was another and its digest": (None, settings("hpo", startup_trials=1)),
        "another precision than configured": ("rounds", _eight_bits),
        "another seed of the run": ("names", _other_seed),
        "another network in the configuration": ("counts", settings("model", base_width=2)),
    },
)  # fmt: skip
