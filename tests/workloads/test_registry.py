"""Tests of what a configuration may ask of a workload."""

from __future__ import annotations

from typing import Any

import pytest

from aiperf_hpc.config import RunConfig, load_config, preset_names
from aiperf_hpc.errors import ConfigError, GraphError
from aiperf_hpc.graph import Graph
from aiperf_hpc.objective import QUALITY_METRICS
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.replica.data import dataset_names, load_dataset
from aiperf_hpc.replica.engines.tensorflow import objectives as tensorflow_objectives
from aiperf_hpc.replica.engines.torch import objectives as torch_objectives
from aiperf_hpc.trial import TensorSpec
from aiperf_hpc.workloads.base import Workload
from aiperf_hpc.workloads.registry import (
    WORKLOADS,
    initial_graph,
    require_samples,
    workload_of,
)


def config(**sections: object) -> RunConfig:
    return RunConfig.model_validate({"dataset": {"name": "digits"}, **sections})


VOLUMES = {"workload": "volumes", "dataset": {"name": "volumes"}, "search": {"method": "fixed"}}


ROWS: dict[str, tuple[set[str], set[str]]] = {
    "torch": (
        {*torch_objectives.LOSSES, *torch_objectives.LOSSES_OF},
        {*torch_objectives.QUALITIES, *torch_objectives.QUALITIES_OF},
    ),
    "tensorflow": ({*tensorflow_objectives.LOSSES}, {*tensorflow_objectives.QUALITIES}),
}


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_names_a_workload_that_it_can_be(name: str) -> None:
    assert name in workload_of(load_config(name)).presets


def test_valid_flops_are_of_hpc_ai500s_workloads_on_its_own_datasets() -> None:
    weights = {w.name: w.valid_flops_on(w.datasets[0]) for w in WORKLOADS.values()}
    assert {name: weight for name, weight in weights.items() if weight is not None} == {
        "resnet50-v1.5": (0.763, 5), "extreme-weather": (0.35, 10)
    }  # fmt: skip
    assert WORKLOADS["resnet50-v1.5"].valid_flops_on("cifar10") is None


def test_every_preset_is_of_one_workload_and_official_networks_differ() -> None:
    assert sorted(p for w in WORKLOADS.values() for p in w.presets) == preset_names()
    assert len(set(HASHES.values())) == len(HASHES)


HASHES = {
    "automl: ResNet-50, the first candidate": "5d8e832a7c608c926178ef7b6d47f5ba",
    "cosmoflow: kernels of 3, since v1.0": "4a8b9e5f6581a2ded15d18d221bf7875",
    "cosmoflow: kernels of 2, v0.7": "356ba198520756b79ce610efd8039db2",
    "deepcam: output stride 16": "f92a17433f462ad28ee7b29b957fcf67",
    "extreme-weather: feature pyramid, 512 regions": "1aea9eb5a1c558009fe8f3432a07dd44",
    "extreme-weather: fourth stage (C4), 512 regions": "fc7eee744eaa363bd042139b1d5ee539",
    "resnet50-v1.5: 1,001 outputs, as in its code": "255980bf5b19e54b12034ad2c099cb69",
    "resnet50-v1.5: 1,000 outputs": "5fe830a2b8f5b76255ede7899ed0167d",
    "volumes: 3 convolutions": "31c3a82809e048a3c09f70851833b6ca",
}


def test_official_networks_have_the_hashes_that_runs_have_stored() -> None:
    """And so have the graphs that are read back from them."""
    made = {f"{w.name}: {n}": make() for w in WORKLOADS.values() for n, make in w.official.items()}
    assert {name: graph.hash for name, graph in made.items()} == HASHES
    again = {name: Graph.from_json(graph.to_json()).hash for name, graph in made.items()}
    assert again == HASHES


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=lambda w: w.name)
def test_every_workload_has_its_rows_in_its_engines_and_its_datasets(workload: Workload) -> None:
    assert set(workload.datasets) <= set(dataset_names())
    for objective in (workload.objective_on(dataset) for dataset in workload.datasets):
        assert objective.metric in QUALITY_METRICS
        for engine in workload.engines:
            losses, qualities = ROWS[engine]
            assert objective.loss in losses
            assert objective.metric in qualities


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"workload": "volume"}, "no workload 'volume'; did you mean 'volumes'.*automl, cosmoflow"),
        ({"workload": "volumes"}, "dataset.name=digits: workload 'volumes' has the datasets vol"),
        (VOLUMES | {"search": {}}, "search.method=guided: no morphism grows.*search.method=fixed"),
        (
            VOLUMES | {"training": {"label_smoothing": 0.1}},
            "training.label_smoothing=0.1: .*not labels",
        ),
        (
            VOLUMES | {"training": {"keep_predictions": True}},
            "training.keep_predictions: workload 'volumes' predicts no classes",
        ),
        (
            {"training": {"keep_predictions": True}, "engine": {"name": "simulated"}},
            "training.keep_predictions: engine.name=simulated predicts nothing",
        ),
        (VOLUMES | {"training": {"target": -0.1}}, "target=-0.1: no mean absolute error is better"),
        ({"training": {"target": 1.5}}, "training.target=1.5: no accuracy is better than 1"),
        ({"training": {"target": -0.1}}, "training.target=-0.1: no accuracy is below 0; give one"),
        (VOLUMES | {"engine": {"name": "simulated"}}, "simulated generates accuracies.*torch or"),
        ({"dataset": {"name": "volumes"}}, "dataset.name=volumes: workload 'automl' has"),
    ],
)
def test_what_a_workload_has_not_is_refused_in_one_line(
    sections: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        workload_of(config(**sections))
    assert "\n" not in str(caught.value)


def test_the_network_of_volumes_is_counted_and_fits_its_dataset() -> None:
    chosen = config(
        **VOLUMES | {"dataset": {"name": "volumes", "image_size": 16, "train_samples": 4}}
    )
    dataset = load_dataset(chosen.dataset, 1).info
    graph = initial_graph(chosen, dataset)
    assert graph.inputs == ("volume",)
    assert graph.shapes["volume"] == (16, 16, 16, 1)
    assert graph.shapes[graph.output.name] == dataset.targets["values"].shape == (2,)
    convolutions = [n for n in graph.nodes if n.layer.kind == "conv3d"]
    assert [graph.shapes[n.name] for n in convolutions] == [
        (16, 16, 16, 64), (8, 8, 8, 128), (4, 4, 4, 256)
    ]  # fmt: skip
    assert count(graph).training > 0
    assert Graph.from_json(graph.to_json()) == graph


def test_a_volume_that_is_too_small_or_no_cube_is_refused() -> None:
    small = {"name": "volumes", "image_size": 8, "train_samples": 4}
    chosen = config(**VOLUMES | {"dataset": small})
    dataset = load_dataset(chosen.dataset, 1).info
    flat = {"inputs": {"volume": TensorSpec(shape=(8, 8, 4, 1))}}
    with pytest.raises(GraphError, match="must be a cube"):
        initial_graph(chosen, dataset.model_copy(update=flat))


@pytest.mark.parametrize(
    ("sections", "samples", "message"),
    [
        ({"training": {"batch_size": 8}}, (7, 5), "batch_size=8: dataset 'volumes' has 7 training"),
        (
            {"replica": {"ranks_per_node": 4}},
            (512, 3),
            "ranks_per_node: dataset 'volumes' has 3 validation samples, not one for each of 4",
        ),
    ],
)
def test_fewer_samples_than_a_batch_or_ranks_are_refused_where_nothing_is_searched_for(
    sections: dict[str, Any], samples: tuple[int, int], message: str
) -> None:
    sizes = dict(zip(("train_samples", "validation_samples"), samples, strict=True))
    chosen = config(
        **VOLUMES | sections | {"dataset": {"name": "volumes", "image_size": 8, **sizes}}
    )
    info = load_dataset(chosen.dataset, 1).info
    with pytest.raises(ConfigError, match=message):
        require_samples(chosen, info)
    enough = {"train_samples": 512, "validation_samples": 4}
    require_samples(chosen, info.model_copy(update=enough))
    require_samples(config(**sections), info)
