"""The process of ``compiler.py``: reads requests from standard input, answers each with a line.

It compiles by tensors without values, and executes nothing: no memory of a network or a batch is
taken, on an accelerator as on the host. Its standard input's end is its own.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any

import numpy as np
from torch import Tensor, fx, nn
from torch._dynamo.backends.registry import lookup_backend
from torch._subclasses.fake_tensor import FakeTensorMode

from aiperf_hpc.config import EngineConfig
from aiperf_hpc.errors import AIPerfError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.weights.checkpoint import expected_shapes
from aiperf_hpc.objective import CLASSIFICATION
from aiperf_hpc.replica.engines.torch.compiler import CompileAnswer, CompileRequest
from aiperf_hpc.replica.engines.torch.engine import Placement, TorchNetwork, placement_of
from aiperf_hpc.replica.runtime.background import lower_priority
from aiperf_hpc.streams import print_in_any_locale
from aiperf_hpc.trial import Hyperparameters

Compile = Callable[[fx.GraphModule, list[Tensor]], Callable[..., Any]]
"""What compiles a module for some inputs, and returns what executes it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer requests until there are no more."""
    print_in_any_locale()
    parser = argparse.ArgumentParser(prog=__spec__.name)
    parser.add_argument("--cores", type=int, required=True)
    parser.add_argument("--device", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--settings", type=EngineConfig.model_validate_json, required=True)
    options = parser.parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # Whoever asks is told too, and decides.
    lower_priority()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # What a compiler prints is no answer.
    placement = placement_of(options.cores, options.device, options.settings, options.ranks)
    for line in _requests():
        answer = _answered(placement, CompileRequest.model_validate_json(line))
        answers.write(answer.model_dump_json() + "\n")
        answers.flush()
    return 0


def _requests() -> Iterator[str]:
    """Yield requests; end the process as soon as there are no more, whatever it is compiling."""
    lines: SimpleQueue[str] = SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            lines.put(line)
        os._exit(0)

    threading.Thread(target=read, name="requests", daemon=True).start()
    while True:
        yield lines.get()


def _answered(placement: Placement, request: CompileRequest) -> CompileAnswer:
    try:
        fill_cache(placement, request)
    except AIPerfError as error:
        return CompileAnswer(error=str(error))
    except Exception as error:  # noqa: BLE001 -- the same will be raised where it can be named
        return CompileAnswer(error=" ".join(f"{type(error).__name__}: {error}".split())[:500])
    return CompileAnswer()


def fill_cache(
    placement: Placement, request: CompileRequest, backend: str | Compile = "inductor"
) -> None:
    """Compile the code of a network for batches of one size, both passes of it.

    It is found again by whoever compiles the same modules for the same shapes: they are made by
    the same code here, of tensors that have shapes and no values.
    """
    compiled = lookup_backend(backend)

    def typed_and_compiled(module: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        return compiled(_typed(module, inputs), inputs)

    graph = Graph.from_json(request.graph)
    used = Hyperparameters.model_validate(
        {"batch_size": request.samples, "learning_rate": 1.0, "precision": request.precision}
    )
    nothing = np.zeros((), np.float32)
    weights = {
        name: np.broadcast_to(nothing, shape) for name, shape in expected_shapes(graph).items()
    }
    compiling = placement._replace(compiled=True, backend=typed_and_compiled)
    with FakeTensorMode(allow_non_fake_inputs=True):
        network = TorchNetwork(graph, weights, used, None, CLASSIFICATION, compiling)
        network.compile(request.samples)


def _typed(module: fx.GraphModule, inputs: list[Tensor]) -> fx.GraphModule:
    """Give arguments the types of those with values, by which compiled code is found again."""
    placeholders = module.graph.find_nodes(op="placeholder")
    for node, given in zip(placeholders, inputs, strict=True):
        node.type = nn.Parameter if isinstance(given, nn.Parameter) else Tensor
    module.recompile()
    return module


if __name__ == "__main__":
    sys.exit(main())
