"""Compiled code in parts: the backward pass of each is over when its bucket is final."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from tests.support.engine_steps import (
    GRADIENTS_BETWEEN_PARTS,
    labelled,
    relative_error,
)
from tests.support.networks import two_stems
from tests.support.torch_engine import PLAIN, compiled, torch_network
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.utils import make_boxed_func

from aiperf_hpc.config import EngineConfig
from aiperf_hpc.replica.engines.torch import gradients
from aiperf_hpc.replica.engines.torch.engine import placement_of
from aiperf_hpc.replica.engines.torch.network import TorchNetwork

GRAPH = two_stems()


class Backend:
    """A back end that notes how often it compiles, and each call of a backward pass's code."""

    def __init__(self) -> None:
        self.compiled = self.backward = 0
        self.events: list[str] = []

    def __call__(self, module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:  # noqa: ANN401
        self.compiled += 1
        back = aot_autograd(
            fw_compiler=lambda code, _: make_boxed_func(code), bw_compiler=self._backward
        )
        return back(module, inputs)

    def _backward(self, code: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        self.backward += 1

        def execute(*given: torch.Tensor) -> object:
            self.events.append("code")
            return code(*given)

        return cast("Callable[..., object]", make_boxed_func(execute))


def network(
    backend: Backend | None, *, split: bool = False, precision: str = "fp32"
) -> TorchNetwork:
    """Return a network that a back end compiles, or that is not compiled."""
    placement = PLAIN if backend is None else compiled(backend, split=split)
    return torch_network(GRAPH, placement, precision=precision)


def train(trained: TorchNetwork, events: list[str], steps: int = 1) -> float:
    """Train on a batch by halves, and note when each bucket is given."""
    for step in range(steps):
        given: list[torch.Tensor] = []

        def ready(bucket: torch.Tensor, given: list[torch.Tensor] = given) -> None:
            events.append("bucket")
            given.append(bucket)

        trained.gradients(labelled(GRAPH, 8, seed=step), 1.0, ready)
        trained.apply(given, 0.05)
    return trained.drain_training()


@GRADIENTS_BETWEEN_PARTS
@pytest.mark.parametrize("parted", [False, True])
def test_buckets_during_backward(monkeypatch: pytest.MonkeyPatch, *, parted: bool) -> None:
    """In one piece, all gradients come at its end; nothing is compiled again in later steps."""
    monkeypatch.setattr(gradients, "BUCKET_BYTES", 300)
    backend = Backend()
    trained = network(backend, split=parted)
    buckets = len(trained.buckets)
    assert buckets == 3
    trained.warm(8, halves=True)
    assert backend.compiled == (buckets if parted else 1) + 1  # And the evaluation's.
    backend.events.clear()
    train(trained, backend.events)
    once = ["code", "bucket"] * buckets if parted else ["code"] + ["bucket"] * buckets
    assert backend.events == once
    train(trained, [], steps=3)
    assert backend.compiled == (buckets if parted else 1) + 1


@GRADIENTS_BETWEEN_PARTS
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_splitting_changes_no_result(monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    """Of a sum that is written over what another part gave, too: a bucket for each parameter."""
    monkeypatch.setattr(gradients, "BUCKET_BYTES", 1)
    parts = network(Backend(), split=True, precision=precision)
    plain = network(None, precision=precision)
    assert len(parts.buckets) == len(GRAPH.parameters)
    losses = [train(each, [], steps=3) for each in (parts, plain)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5 if precision == "fp32" else 1e-2)
    found, wanted = parts.weights(), plain.weights()
    for name, array in wanted.items():
        assert relative_error(found[name], array) < (1e-5 if precision == "fp32" else 2e-2), name


@GRADIENTS_BETWEEN_PARTS
@pytest.mark.parametrize("parted", [False, True])
def test_both_passes_are_compiled_at_once(monkeypatch: pytest.MonkeyPatch, *, parted: bool) -> None:
    """Ahead, where nothing is executed: a backward pass is else compiled in a step."""
    monkeypatch.setattr(gradients, "BUCKET_BYTES", 300)
    backend = Backend()
    with functorch_config.patch(force_non_lazy_backward_lowering=False):
        placement_of(1, 0, EngineConfig(name="torch", device="cpu", compile="always"), 1)
        trained = network(backend, split=parted)
        trained.compile(8)
    assert backend.backward == (len(trained.buckets) if parted else 1)
    assert not backend.events
