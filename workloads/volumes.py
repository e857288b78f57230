"""A small regression on volumes: slope and strength of the spectrum of a random field."""

from __future__ import annotations

from functools import partial

from aiperf_hpc.objective import regression
from aiperf_hpc.workloads.base import Definition, Workload
from aiperf_hpc.workloads.networks.volumes import INPUT, small_regression

TARGETS = 2


WORKLOAD = Workload(
    name="volumes",
    summary="regression on volumes: the spectrum of a random field, by 3-D convolutions",
    definition=Definition(
        benchmark="none",
        task="regression of 2 numbers on volumes",
        network="3 3-D convolutions, 2 dense layers",
        data="1,024 + 256 random fields of 16^3 cells, generated from a formula",
        target="mean absolute error <= 0.1",
        scoring="none: it is an example of a workload",
        source="docs/decisions/workloads.md",
    ),
    objective=regression(TARGETS),
    datasets=("volumes",),
    network=lambda model, dataset: small_regression(
        dataset.input_shape(INPUT), TARGETS, model.base_width
    ),
    searchable=False,
    presets=("volumes",),
    official={"3 convolutions": partial(small_regression, (16, 16, 16, 1), TARGETS, 8)},
    closed={},
    opened="everything: its runs are never official",
)
