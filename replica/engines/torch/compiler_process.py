"""The compiling process of ``compilation.py``: one line of output per line of standard input.

It compiles with tensors without values and executes nothing. It therefore allocates no memory for
networks or batches on an accelerator or the host. It exits at the end of its standard input.
"""

from __future__ import annotations

import argparse
import json
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
from aiperf_hpc.morphism.weights.weight_file import expected_shapes
from aiperf_hpc.objective import CLASSIFICATION
from aiperf_hpc.replica.engines.base import NetworkState
from aiperf_hpc.replica.engines.torch.compilation import CompileRequest
from aiperf_hpc.replica.engines.torch.engine import placement_of
from aiperf_hpc.replica.engines.torch.network import Placement, TorchNetwork
from aiperf_hpc.replica.runtime.background import lower_priority
from aiperf_hpc.streams import print_in_any_locale
from aiperf_hpc.trial import Hyperparameters

Compile = Callable[[fx.GraphModule, list[Tensor]], Callable[..., Any]]
"""Function that compiles a module for given inputs and returns the compiled function."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Process requests until the end of the input."""
    print_in_any_locale()
    parser = argparse.ArgumentParser(prog=__spec__.name)
    parser.add_argument("--cores", type=int, required=True)
    parser.add_argument("--device", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--settings", type=EngineConfig.model_validate_json, required=True)
    options = parser.parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # The parent process also receives and handles it.
    lower_priority()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # Keeps the output of compilers apart from the results.
    placement = placement_of(options.cores, options.device, options.settings, options.ranks)
    for line in _requests():
        problem = _problem(placement, CompileRequest.model_validate_json(line))
        answers.write(json.dumps(problem) + "\n")
        answers.flush()
    return 0


def _requests() -> Iterator[str]:
    """Yield requests; exit immediately at the end of standard input, even while compiling."""
    lines: SimpleQueue[str] = SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            lines.put(line)
        os._exit(0)

    threading.Thread(target=read, name="requests", daemon=True).start()
    while True:
        yield lines.get()


def _problem(placement: Placement, request: CompileRequest) -> str:
    """Compile a network; return the error message in one line, or an empty string."""
    try:
        fill_cache(placement, request)
    except AIPerfError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 -- the first step raises it again
        return " ".join(f"{type(error).__name__}: {error}".split())[:500]
    return ""


def fill_cache(
    placement: Placement, request: CompileRequest, backend: str | Compile = "inductor"
) -> None:
    """Compile both passes of a network for batches of one size.

    A process that compiles the same modules for the same shapes finds the code in the cache. The
    modules are created by the same functions here, from tensors with shapes but no values.
    """
    compiled = lookup_backend(backend)

    def compile_typed(module: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        return compiled(_typed(module, inputs), inputs)

    graph = Graph.from_json(request.graph)
    used = Hyperparameters.model_validate(
        {"batch_size": request.samples, "learning_rate": 1.0, "precision": request.precision}
    )
    zero = np.zeros((), np.float32)
    weights = {name: np.broadcast_to(zero, shape) for name, shape in expected_shapes(graph).items()}
    compiling = placement._replace(compiled=True, backend=compile_typed)
    with FakeTensorMode(allow_non_fake_inputs=True):
        network = TorchNetwork(NetworkState(graph, weights, used), CLASSIFICATION, compiling)
        network.compile(request.samples)


def _typed(module: fx.GraphModule, inputs: list[Tensor]) -> fx.GraphModule:
    """Give arguments the types of tensors with values, which are part of the cache key."""
    placeholders = module.graph.find_nodes(op="placeholder")
    for node, given in zip(placeholders, inputs, strict=True):
        node.type = nn.Parameter if isinstance(given, nn.Parameter) else Tensor
    module.recompile()
    return module


if __name__ == "__main__":
    sys.exit(main())
