"""Networks that another process compiles, for this one to find."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
from tests.support.detectors import detector
from tests.support.engine_steps import GRADIENTS_BETWEEN_PARTS, built, hyperparameters, labelled
from tests.support.networks import cosmoflow, trained_weights, two_stems
from tests.support.torch_engine import RecordingBackend, compiled, torch_network
from tests.support.waiting import until

from aiperf_hpc.config import EngineConfig
from aiperf_hpc.errors import EngineError, OutOfMemoryError
from aiperf_hpc.graph import Graph
from aiperf_hpc.objective import CLASSIFICATION
from aiperf_hpc.replica.engines.base import NetworkState, RankNetwork
from aiperf_hpc.replica.engines.torch import compilation, gradients
from aiperf_hpc.replica.engines.torch import engine as torch_engine
from aiperf_hpc.replica.engines.torch.compilation import (
    CompileRequest,
    CompilerProcess,
    check_compiler,
)
from aiperf_hpc.replica.engines.torch.compiler_process import fill_cache
from aiperf_hpc.replica.engines.torch.engine import TorchEngine, make_engine
from aiperf_hpc.replica.engines.torch.network import Placement
from aiperf_hpc.workloads.registry import workload_named

SETTINGS = EngineConfig(name="torch", device="cpu", compile="always")
REQUEST = CompileRequest(graph=two_stems().to_json(), precision="fp32", samples=8)


@GRADIENTS_BETWEEN_PARTS
@pytest.mark.parametrize(("precision", "parts"), [("fp32", 1), ("bf16", 1), ("bf16", 3)])
def test_code_compiled_ahead(monkeypatch: pytest.MonkeyPatch, precision: str, parts: int) -> None:
    """To the types of its arguments: else it would be compiled twice, and the second time here."""
    monkeypatch.setattr(gradients, "BUCKET_BYTES", 300)
    ahead, here, graph = RecordingBackend(), RecordingBackend(), two_stems()
    request = REQUEST.model_copy(update={"precision": precision})
    placement = compiled(here, split=parts > 1)
    fill_cache(placement, request, ahead)
    network = torch_network(graph, placement, precision=precision)
    network.warm(request.samples)
    assert len(here.compiled) == parts + 1
    assert here.compiled == ahead.compiled


@GRADIENTS_BETWEEN_PARTS
@pytest.mark.parametrize(
    ("graph", "workload"),
    [(cosmoflow(), "cosmoflow"), (detector(), "extreme-weather")],
    ids=["volumes", "boxes"],
)
def test_no_graph_breaks(monkeypatch: pytest.MonkeyPatch, graph: Graph, workload: str) -> None:
    """Nothing in them depends on a number, which would cut the code there."""
    monkeypatch.setattr(gradients, "BUCKET_BYTES", 20_000)
    here = RecordingBackend()
    placement = compiled(here, split=True)
    weights = trained_weights(graph, np.random.default_rng(0))
    engine = TorchEngine(placement, workload_named(workload).objective)
    network = engine.build(
        NetworkState(graph, weights, hyperparameters(batch_size=2, precision="bf16"))
    )
    network.warm(2, halves=True)
    assert len(network.buckets) > 1
    assert len(here.compiled) == len(network.buckets) + 1


def test_two_threads_trace_and_train_beside_each_other() -> None:
    graph = two_stems()
    engine = TorchEngine(compiled("eager"), CLASSIFICATION)
    running = built(engine, graph)
    running.warm(8)

    def make_ready() -> RankNetwork:
        network = built(engine, graph)
        network.warm(8)
        return network

    steps = 0
    with ThreadPoolExecutor(1) as background:
        preparing = background.submit(make_ready)
        while not (preparing.done() and steps):
            running.train_step(labelled(graph, 8, seed=steps), 1e-4)
            running.drain_training()
            steps += 1
        preparing.result().close()


def test_nothing_is_compiled_for_one_sample() -> None:
    compiler = CompilerProcess(1, 0, SETTINGS, 1)
    TorchEngine(compiled("inductor"), CLASSIFICATION, compiler).compile_ahead(
        NetworkState(two_stems(), {}, hyperparameters(batch_size=1))
    )
    assert compiler._process is None


def compiler_running(code: str) -> CompilerProcess:
    """Return one whose process executes other code, which compiles nothing."""
    compiler = CompilerProcess(1, 0, SETTINGS, 1)
    compiler._command = [sys.executable, "-c", code]
    return compiler


ANSWER = "input(); print('\"%s\"', flush=True)"


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        (f"{ANSWER % 'no such layer'}; {ANSWER % ''}", "no such layer"),
        ("import sys; input(); sys.exit(3)", "the compiler process ended with status 3"),
    ],
)
def test_a_failed_request(capsys: pytest.CaptureFixture[str], code: str, problem: str) -> None:
    """By another process, if the first one ended."""
    compiler = compiler_running(code)
    compiler.compile(REQUEST)
    assert f"is compiled during its steps: {problem}\n" in capsys.readouterr().err
    compiler._command[-1] = ANSWER % ""
    compiler.compile(REQUEST)
    assert capsys.readouterr().err == ""


HANGS = (
    "import os, subprocess, sys; "
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1e6)']); "
    "print(child.pid, file=open(os.environ['SAYS'], 'w'), flush=True); child.wait()"
)
"""Waits for a process of its own, as a compiler does, and never reads a request."""


@pytest.mark.parametrize("reads", [True, False])
def test_a_hung_process_is_killed_with_its_children(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    reads: bool,
) -> None:
    """A request that is not read fills the pipe, so that even to write it is to wait."""
    said, limits = tmp_path / "child", list[float]()

    class Expiring:
        """A timer that ends when the process has got where it hangs."""

        def __init__(self, seconds: float, expire: Callable[[], None]) -> None:
            limits.append(seconds)
            self._thread = threading.Thread(target=self._run, args=(expire,))

        def _run(self, expire: Callable[[], None]) -> None:
            until(lambda: said.exists() and said.read_text("ascii").endswith("\n"))
            expire()

        def start(self) -> None:
            self._thread.start()

        def cancel(self) -> None:
            """Too late."""

    monkeypatch.setattr(compilation, "threading", SimpleNamespace(Timer=Expiring, Event=Event))
    monkeypatch.setenv("SAYS", str(said))
    compiler = compiler_running(("input(); " if reads else "") + HANGS)
    large = REQUEST.model_copy(update={"graph": "x" * (10 if reads else 2**20)})
    problem = compiler.compile(large)
    assert problem == "the compiler process was killed after 600 s"
    assert problem in capsys.readouterr().err
    assert compiler._process is None
    child = int(said.read_text("ascii"))
    until(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == "zombie")
    compiler._command[-1] = f"{ANSWER % ''}; input()"
    monkeypatch.undo()
    assert compiler.compile(REQUEST) == ""
    assert limits == [600.0]


def test_the_process_ends_with_its_owner() -> None:
    compiler = compiler_running(f"{ANSWER % ''}; input()")
    compiler.compile(REQUEST)
    process = compiler._process
    assert process is not None
    assert process.poll() is None
    del compiler
    assert process.returncode is not None


def test_graphs_that_cannot_be_built(capfd: pytest.CaptureFixture[str]) -> None:
    """By the process itself, which goes on; no compiler is needed for it."""
    compiler = CompilerProcess(1, 0, SETTINGS, 1)
    for graph in ("{}", "no graph"):
        compiler.compile(REQUEST.model_copy(update={"graph": graph}))
    first, second = capfd.readouterr().err.splitlines()
    assert first.startswith("aiperf: the next network is compiled during its steps: ")
    assert second != first


NO_COMPILER = "Failed to find C compiler. Please specify via CC environment variable."


def failing(error: Exception) -> Callable[..., object]:
    """Return a back end that compiles nothing."""

    def compiled(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        raise error

    return compiled


def test_missing_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's launchers are C, and images of containers often have no compiler of it."""
    cpu = torch.device("cpu")
    check_compiler(cpu, "eager")
    broken = failing(RuntimeError(f"{NO_COMPILER}\nand more"))
    monkeypatch.setattr(torch_engine, "check_compiler", lambda _: check_compiler(cpu, broken))
    placed = Placement(cpu, 1, compiled=True)
    monkeypatch.setattr(torch_engine, "placement_of", lambda *_: placed)
    make_engine(1, 0, SETTINGS, CLASSIFICATION, 1)  # On a CPU nothing is checked.
    gpu = Placement(torch.device("cuda"), 1, compiled=True)
    monkeypatch.setattr(torch_engine, "placement_of", lambda *_: gpu)
    with pytest.raises(EngineError) as raised:
        make_engine(1, 0, SETTINGS, CLASSIFICATION, 1)
    assert str(raised.value) == (
        f"PyTorch: {NO_COMPILER}; torch.compile needs Triton, a C compiler (gcc) and Python's "
        "headers on each node, or set engine.compile=never"
    )


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (RuntimeError(f"{NO_COMPILER}\nand more"), EngineError),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), OutOfMemoryError),
    ],
)
def test_errors_of_compilers_are_reported(error: Exception, wanted: type[Exception]) -> None:
    """PyTorch's own error begins with a line that names the back end alone."""
    network = torch_network(two_stems(), compiled(failing(error)))
    with pytest.raises(wanted) as raised:
        network.warm(8)
    assert str(raised.value).removeprefix("PyTorch: ") == str(error).splitlines()[0]


def test_code_of_closed_networks_is_released() -> None:
    """Inductor keeps every module, in three places: 10 to 20 MB a network."""
    codecache = pytest.importorskip("torch._inductor.codecache")
    loaded = codecache.PyCodeCache.load("number = 1\n", extra="of a network")
    kept = weakref.ref(loaded)
    name, path = loaded.__name__, loaded.__file__
    assert sys.modules[name] is loaded
    assert path in codecache.PyCodeCache.linemaps
    del loaded
    network = torch_network(two_stems(), compiled("eager"))
    with compilation.CODE_CACHE.loading():
        network.close()
        assert sys.modules[name] is kept()  # Not while another network is loaded.
    gc.collect()
    assert kept() is None
    assert name not in sys.modules
    assert path not in codecache.PyCodeCache.linemaps
