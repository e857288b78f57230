"""Optimizers of both engines, against those of PyTorch, and LAMB's paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.support.engine_steps import (
    assert_equal,
    given,
    hyperparameters,
    labelled,
    network_of,
    outputs_of,
    relative_error,
)
from tests.support.networks import residual, sequential, trained_weights
from tests.support.torch_engine import torch_network

from aiperf_hpc.errors import EngineError
from aiperf_hpc.graph import Graph, layers
from aiperf_hpc.morphism.weights.weight_file import Weights
from aiperf_hpc.replica.data.base import Batch, labelled_images
from aiperf_hpc.replica.engines.base import NetworkState, RankEngine, RankNetwork
from aiperf_hpc.replica.engines.torch.network import TorchNetwork
from aiperf_hpc.replica.engines.torch.optimizers import _norms

RATE = 0.01
SETTINGS: dict[str, dict[str, Any]] = {
    "sgd": {"weight_decay": 0.1, "max_gradient_norm": 0.5},
    "adam": {"weight_decay": 0.1, "beta2": 0.98},
    "adamw": {"weight_decay": 0.1, "beta1": 0.8, "epsilon": 1e-6},
    "lamb": {"weight_decay": 0.1, "max_gradient_norm": 1.0, "epsilon": 1e-6},
    "asgd": {"weight_decay": 0.1, "averaging_start": 2},
}
"""Of each optimizer, with all that it has away from zero."""

Arrays = Mapping[str, NDArray[np.float32]]


def one_of_each() -> Graph:
    """Every kind of parameter and hardly more, for it is these that an optimizer sees.

    Kernels of one pixel, of several and of none; what scales and shifts; biases.
    """
    return sequential(
        image=layers.Input((6, 6, 2)),
        conv=layers.Conv2D(3, 3),
        norm=layers.BatchNorm(),
        relu=layers.ReLU(),
        pixels=layers.Conv2D(5, 1),
        pixels_norm=layers.BatchNorm(),
        pixels_relu=layers.ReLU(),
        pool=layers.GlobalAveragePool2D(),
        logits=layers.Dense(4),
        probabilities=layers.Softmax(),
    )


GRAPH = one_of_each()
WEIGHTS = trained_weights(GRAPH, np.random.default_rng(1))


def built(
    engine: RankEngine, optimizer: str, weights: Weights = WEIGHTS, **changed: object
) -> RankNetwork:
    used = SETTINGS[optimizer] | {"optimizer": optimizer} | changed
    return network_of(engine, GRAPH, weights, **used)


def gradients(step: int) -> dict[str, NDArray[np.float32]]:
    """Return each parameter's gradient in a step; their sizes differ widely."""
    rng = np.random.default_rng(100 + step)
    return {
        name: rng.normal(0.0, 10.0 ** (number % 5 - 3), shape).astype(np.float32)
        for number, (name, shape) in enumerate(GRAPH.parameters.items())
    }


def applied(network: RankNetwork, by_name: Arrays, rate: float) -> None:
    """Do a step with given gradients: found by which bucket's place moves which parameter."""
    network.apply(in_buckets(network, by_name), rate)


def in_buckets(network: RankNetwork, by_name: Arrays) -> list[NDArray[np.float32]]:
    """Return gradients as the engine's own flat buckets."""
    if isinstance(network, TorchNetwork):
        flat = torch.zeros(sum(network.buckets))
        network._layout.write(flat, by_name)
        whole = flat.numpy()
    else:
        whole = np.concatenate([array.ravel() for array in by_name.values()])
    return np.split(whole, np.cumsum(network.buckets)[:-1])


def pytorchs(name: str, parameters: Mapping[str, torch.nn.Parameter]) -> torch.optim.Optimizer:
    """PyTorch's own optimizer of this name; weight decay on kernels alone."""
    groups = [
        {"params": [p for n, p in parameters.items() if n.endswith("/kernel")]},
        {"params": [p for n, p in parameters.items() if not n.endswith("/kernel")]},
    ]
    groups[1]["weight_decay"] = 0.0  # type: ignore[assignment]
    match name:
        case "sgd":
            return torch.optim.SGD(groups, lr=RATE, momentum=0.9)
        case "adam":
            return torch.optim.Adam(groups, lr=RATE, betas=(0.9, 0.98), weight_decay=0.1)
        case "adamw":
            return torch.optim.AdamW(
                groups, lr=RATE, betas=(0.8, 0.999), eps=1e-6, weight_decay=0.1
            )
        case _:
            return torch.optim.ASGD(groups, lr=RATE, lambd=0.0, t0=2, weight_decay=0.1)


def parameters_of() -> dict[str, torch.nn.Parameter]:
    return {n: torch.nn.Parameter(torch.tensor(WEIGHTS[n])) for n in GRAPH.parameters}


def train_both(
    network: RankNetwork,
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, torch.nn.Parameter],
    limit: float | None = None,
) -> None:
    """Do ten steps of both with the same gradients, whose norm PyTorch keeps below a limit."""
    for step in range(10):
        slopes = gradients(step)
        for name, parameter in parameters.items():
            parameter.grad = torch.tensor(slopes[name])
        if limit is not None:
            torch.nn.utils.clip_grad_norm_(parameters.values(), limit)
        optimizer.step()
        applied(network, slopes, RATE)


@pytest.mark.parametrize(
    ("name", "limit"), [("sgd", 0.7), ("adam", None), ("adamw", 0.7), ("asgd", None)]
)
def test_updates_are_those_of_pytorch(engine: RankEngine, name: str, limit: float | None) -> None:
    """Ten steps with the same gradients, of 1e-4 to 1e2, whose norm is kept below a limit or not.

    Ours is another SGD where a rate changes or weights decay; here it does not, and they do not.
    """
    changed: dict[str, Any] = {"max_gradient_norm": limit}
    if name == "sgd":
        changed["weight_decay"] = 0.0
    network, parameters = built(engine, name, **changed), parameters_of()
    optimizer = pytorchs(name, parameters)
    train_both(network, optimizer, parameters, limit)
    found = network.weights()
    for n, parameter in parameters.items():
        wanted = optimizer.state[parameter]["ax"] if name == "asgd" else parameter.detach()
        moved = np.abs(wanted.numpy() - WEIGHTS[n]).max()
        rounding = 4 * np.finfo(np.float32).eps * np.abs(WEIGHTS[n]).max()
        assert np.abs(found[n] - wanted.numpy()).max() < 1e-4 * moved + rounding, n


@pytest.mark.parametrize("what", ["kernels", "all"])
def test_decay_in_the_loss_is_the_l2_term_of_pytorchs_sgd(engine: RankEngine, what: str) -> None:
    """Which adds the decay times a parameter to its gradient, so that momenta have it too."""
    network = built(
        engine, "sgd", max_gradient_norm=None, weight_decay_of=what, weight_decay_in="loss"
    )
    parameters = parameters_of()
    decays = {n: 0.1 if what == "all" or n.endswith("/kernel") else 0.0 for n in parameters}
    groups = [{"params": [p], "weight_decay": decays[n]} for n, p in parameters.items()]
    optimizer = torch.optim.SGD(groups, lr=RATE, momentum=0.9)
    train_both(network, optimizer, parameters)
    found = network.weights()
    for n, parameter in parameters.items():
        np.testing.assert_allclose(found[n], parameter.detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["adamw", "lamb", "asgd"])
def test_weight_decay_of_parameters_without_gradients(engine: RankEngine, name: str) -> None:
    """Without gradients nothing but weight decay moves a parameter, and it moves each."""
    for what in ("kernels", "all"):
        network = built(engine, name, weight_decay_of=what)
        applied(network, {n: np.zeros_like(WEIGHTS[n]) for n in GRAPH.parameters}, RATE)
        found = network.weights()
        for n in GRAPH.parameters:
            shrunk = np.linalg.norm(found[n]) < np.linalg.norm(WEIGHTS[n])
            assert shrunk == (what == "all" or n.endswith("/kernel")), n


class Lamb:
    """Algorithm 2 of You et al. 2020, line by line, in float64."""

    def __init__(self, weights: Weights, names: list[str]) -> None:
        self.x = {name: weights[name].astype(np.float64) for name in names}
        self.m = {name: np.zeros_like(x) for name, x in self.x.items()}
        self.v = {name: np.zeros_like(x) for name, x in self.x.items()}
        self.t = 0

    def step(self, slopes: Arrays, rate: float, decay: float, limit: float, eps: float) -> None:
        self.t += 1
        norm = np.sqrt(sum(np.square(g.astype(np.float64)).sum() for g in slopes.values()))
        for name, x in self.x.items():
            g = slopes[name].astype(np.float64) / max(1.0, norm / limit)
            self.m[name] = 0.9 * self.m[name] + 0.1 * g
            self.v[name] = 0.999 * self.v[name] + 0.001 * g * g
            m, v = self.m[name] / (1 - 0.9**self.t), self.v[name] / (1 - 0.999**self.t)
            u = m / (np.sqrt(v) + eps) + (decay * x if name.endswith("/kernel") else 0.0)
            norms = np.linalg.norm(x), np.linalg.norm(u)
            ratio = norms[0] / norms[1] if min(norms) > 0 else 1.0
            self.x[name] = x - rate * ratio * u


def test_lamb_is_the_papers(engine: RankEngine) -> None:
    """One parameter begins at zero, and one never has a gradient: both norms are zero once."""
    zero, idle, *_ = (name for name in GRAPH.parameters if name.endswith("/beta"))
    weights = {**WEIGHTS, zero: np.zeros_like(WEIGHTS[zero])}
    network, paper = built(engine, "lamb", weights), Lamb(weights, list(GRAPH.parameters))
    for step in range(10):
        slopes = gradients(step)
        slopes[idle][:] = 0.0
        paper.step(slopes, RATE, 0.1, 1.0, 1e-6)
        applied(network, slopes, RATE)
    found = network.weights()
    np.testing.assert_array_equal(found[idle], weights[idle])
    for name, wanted in paper.x.items():
        assert relative_error(found[name], wanted.astype(np.float32)) < 1e-5, name


def rate(step: int) -> float:
    return RATE * (1.0 - step / 20)


def without_rounding_alone() -> Graph:
    """A network of no bias that a normalisation takes away again.

    The gradients of one are of rounding alone, which Adam and LAMB bring to the size of all others.
    """
    nodes = (node for node in residual().nodes if node.name != "hidden_norm")
    return Graph(
        tuple(
            replace(node, inputs=("hidden",)) if node.name == "hidden_relu" else node
            for node in nodes
        )
    )


@pytest.mark.parametrize("name", SETTINGS)
def test_both_engines_agree_over_20_steps(both: tuple[RankEngine, RankEngine], name: str) -> None:
    """Losses within 1e-3, weights and outputs within 1e-2 of the largest, as with plain SGD."""
    graph = without_rounding_alone()
    weights = trained_weights(graph, np.random.default_rng(21))
    used = SETTINGS[name] | {"optimizer": name, "label_smoothing": 0.1}
    networks = [network_of(engine, graph, weights, **used) for engine in both]
    for step in range(20):
        batch = labelled(graph, 16, seed=step)
        for network in networks:
            network.train_step(batch, rate(step))
        losses = [network.drain_training() for network in networks]
        assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    evaluated = labelled(graph, 32, seed=99)
    for network in networks:
        network.evaluate_step(evaluated)
    assert relative_error(*(outputs_of(n, evaluated.inputs) for n in networks)) < 1e-2
    sums = [network.drain_evaluation() for network in networks]
    assert sums[0].loss == pytest.approx(sums[1].loss, rel=1e-2)
    found, wanted = (network.weights() for network in networks)
    for parameter in graph.parameters:
        assert relative_error(found[parameter], wanted[parameter]) < 1e-2, parameter
    states = [network.optimizer_state() for network in networks]
    assert {k: a.shape for k, a in states[0].items()} == {k: a.shape for k, a in states[1].items()}
    assert all(array.dtype == np.float32 for state in states for array in state.values())


@pytest.mark.parametrize("name", SETTINGS)
def test_a_step_in_halves_is_one_in_one_piece(engine: RankEngine, name: str) -> None:
    whole, halves = (built(engine, name) for _ in range(2))
    for step in range(5):
        batch = labelled(GRAPH, 8, seed=step)
        whole.train_step(batch, rate(step))
        halves.apply(given(halves, batch, 1.0), rate(step))
    _assert_close(halves, whole, 1e-5)


@pytest.mark.parametrize(
    ("name", "precision"), [*((name, "fp32") for name in SETTINGS), ("lamb", "bf16")]
)
def test_training_is_resumed_bitwise(engine: RankEngine, name: str, precision: str) -> None:
    """An evaluation and a look at weights and state lie between, as in a trial."""
    batches = [labelled(GRAPH, 8, seed=step) for step in range(6)]
    whole, first = (built(engine, name, precision=precision) for _ in range(2))
    train(whole, batches, 0)
    train(first, batches[:3], 0)
    first.evaluate_step(batches[0])
    state = first.optimizer_state()
    used = hyperparameters(**SETTINGS[name] | {"optimizer": name, "precision": precision})
    second = engine.build(NetworkState(GRAPH, first.weights(), used, state))
    assert_equal(second.weights(), first.weights())
    assert_equal(second.optimizer_state(), state)
    second.warm(8)
    for network in (first, second):
        train(network, batches[3:], 3)
        assert_equal(network.weights(), whole.weights())
        assert_equal(network.optimizer_state(), whole.optimizer_state())


def train(network: RankNetwork, batches: list[Batch], first: int) -> None:
    for step, batch in enumerate(batches, first):
        network.train_step(batch, rate(step))


@pytest.mark.parametrize("name", SETTINGS)
def test_states_are_portable(both: tuple[RankEngine, RankEngine], name: str) -> None:
    """From PyTorch to TensorFlow; both agree on names and shapes in the test above."""
    batches = [labelled(GRAPH, 8, seed=step) for step in range(4)]
    engine, torch_engine = both
    whole = built(torch_engine, name)
    train(whole, batches[:2], 0)
    used = hyperparameters(**SETTINGS[name] | {"optimizer": name})
    other = engine.build(NetworkState(GRAPH, whole.weights(), used, whole.optimizer_state()))
    for network in (whole, other):
        train(network, batches[2:], 2)
    _assert_close(other, whole, 1e-4)


def _assert_close(found: RankNetwork, wanted: RankNetwork, tolerance: float) -> None:
    for one, other in (
        (found.weights(), wanted.weights()),
        (found.optimizer_state(), wanted.optimizer_state()),
    ):
        assert one.keys() == other.keys()
        for key, array in other.items():
            error = np.abs(one[key] - array).max()
            assert error <= tolerance * max(np.abs(array).max(), 1e-6), key


@pytest.mark.parametrize("name", ["sgd", "lamb"])
def test_a_state_of_another_optimizer_is_refused(engine: RankEngine, name: str) -> None:
    other = built(engine, "asgd" if name == "sgd" else "sgd")
    used = hyperparameters(optimizer=name)
    with pytest.raises(EngineError, match="cannot resume from the state of another one: it has"):
        engine.build(NetworkState(GRAPH, WEIGHTS, used, other.optimizer_state()))


def _without_steps(engine: RankEngine, name: str) -> NetworkState:
    state = built(engine, name).optimizer_state()
    stored = {key: value for key, value in state.items() if key != "step"}
    return NetworkState(GRAPH, WEIGHTS, hyperparameters(optimizer=name), stored)


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_a_state_without_the_number_of_steps_is_refused(engine: RankEngine, name: str) -> None:
    """Adam and LAMB would correct the bias of moments again."""
    with pytest.raises(EngineError, match="not 'step'"):
        engine.build(_without_steps(engine, name))


def test_the_average_is_evaluated_and_the_iterates_are_trained(engine: RankEngine) -> None:
    """What evaluation, logits and weights show is the mean of the iterates since the second step.

    Training is that of plain SGD all the same.
    """
    averaged = built(engine, "asgd", averaging_start=0, weight_decay=0.0)
    plain = built(engine, "sgd", momentum=0.0, weight_decay=0.0, max_gradient_norm=None)
    iterates = []
    for step in range(5):
        batch = labelled(GRAPH, 8, seed=step)
        for network in (averaged, plain):
            network.train_step(batch, 0.1)
        averaged.evaluate_step(batch)
        iterates.append(plain.weights())
    found, state = averaged.weights(), averaged.optimizer_state()
    means = {n: np.mean([w[n] for w in iterates[1:]], axis=0) for n in GRAPH.parameters}
    for name, wanted in means.items():
        assert relative_error(state[f"iterate:{name}"], iterates[-1][name]) < 1e-5, name
        assert relative_error(found[name], wanted) < 1e-5, name
    shown = network_of(engine, GRAPH, found)
    batch = labelled(GRAPH, 8, seed=9)
    outputs = [outputs_of(network, batch.inputs) for network in (averaged, shown)]
    assert relative_error(*outputs) < 1e-5
    assert averaged.drain_training() == pytest.approx(plain.drain_training(), rel=1e-5)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_loss_that_is_scaled_trains_as_one_that_is_not(name: str) -> None:
    """fp16 on the CPU, which the engine refuses for its speed; what overflows changes nothing."""
    half, whole = (
        torch_network(GRAPH, seed=1, **SETTINGS[name], optimizer=name, precision=precision)
        for precision in ("fp16", "fp32")
    )
    for step in range(3):
        batch, part = labelled(GRAPH, 32, seed=step), labelled(GRAPH, 32, seed=10 + step)
        for network in (half, whole):
            network.train_step(batch, RATE)
            network.apply(given(network, part, 1.0), RATE)
    found, wanted = half.weights(), whole.weights()
    for parameter in GRAPH.parameters:
        moved = np.linalg.norm(wanted[parameter] - WEIGHTS[parameter])
        assert np.linalg.norm(found[parameter] - wanted[parameter]) < 0.2 * moved, parameter
    large = labelled(GRAPH, 8)
    before = half.weights(), half.optimizer_state()
    half.train_step(
        labelled_images(large.inputs["image"] * np.float32(6e4), large.targets["label"]), RATE
    )
    after = half.weights(), half.optimizer_state()
    assert all(np.array_equal(before[0][n], after[0][n]) for n in GRAPH.parameters)
    assert_equal(before[1], after[1])
    half.train_step(large, RATE)  # Nothing that is no number is left of it anywhere.
    later = half.weights()
    assert all(np.isfinite(later[n]).all() for n in GRAPH.parameters)
    assert not any(np.array_equal(after[0][n], later[n]) for n in GRAPH.parameters)


@pytest.mark.parametrize("threads", [1, 5])
def test_norms_do_not_depend_on_the_threads(threads: int) -> None:
    """Ranks that compute a step on more threads or fewer end in the same weights."""
    values = [torch.from_numpy(np.random.default_rng(0).standard_normal(300_001, np.float32))]
    kept = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        wanted = _norms(values)[0].item()
        torch.set_num_threads(threads)
        assert _norms(values)[0].item() == wanted
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(kept)
