"""``torch.compile`` during training: its check, a load-only back end, and a separate process.

Tracing and lowering a network can execute Python for minutes. In a thread, this would hold the
interpreter lock and delay the thread that launches training steps. Therefore a second process
compiles the next network. Both share the compiled code in the folder of
``runtime/kernel_caches.py``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, cast

import psutil
import torch
from torch import Tensor, fx

from aiperf_hpc.config import EngineConfig
from aiperf_hpc.errors import EngineError
from aiperf_hpc.replica.engines.torch.named_errors import named_errors
from aiperf_hpc.streams import warn
from aiperf_hpc.trial import Value

LIMIT_SECONDS = 600.0
"""Timeout of a compilation in seconds. A typical network of a search needs one or two minutes."""


def check_compiler(device: torch.device, backend: str | Callable[..., Any] = "inductor") -> None:
    """Compile and execute an addition to check the compiler before training.

    On accelerators, compiled code is launched by C code that is compiled on this machine. Container
    images often lack a C compiler, and every trial would fail.

    Raises:
        EngineError: the compilation or the execution fails.
    """
    try:
        with named_errors():
            torch.compile(lambda x: x + 1, backend=backend)(torch.zeros(1, device=device))
    except EngineError as error:
        raise EngineError(
            f"{error}; torch.compile needs Triton, a C compiler (gcc) and Python's headers on each "
            "node, or set engine.compile=never"
        ) from None


class LoadingBackend:
    """A back end of ``torch.compile`` that compiles by another one and can skip the execution."""

    def __init__(self, backend: str | Callable[..., Any]) -> None:
        self._backend = backend
        self._only = False

    @contextmanager
    def only(self) -> Iterator[None]:
        """Compile the functions called in the block without executing them.

        They return uninitialized tensors of the same form as their results, for the calling code.
        """
        self._only = True
        try:
            yield
        finally:
            self._only = False

    def __call__(self, module: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        # Imported here because the import needs a second and is only required to compile.
        from torch._dynamo.backends.registry import lookup_backend

        (output,) = module.graph.find_nodes(op="output")
        nodes = cast("Sequence[fx.Node]", output.args[0])
        makers = [_maker_like(node.meta["example_value"]) for node in nodes]
        with CODE_CACHE.loading():
            compiled = lookup_backend(self._backend)(module, inputs)
        return lambda *read: [make() for make in makers] if self._only else compiled(*read)


def _maker_like(value: Any) -> Callable[[], Any]:  # noqa: ANN401 -- a tensor, or a number
    """Return a function that creates uninitialized tensors of the form of ``value``."""
    if not isinstance(value, Tensor):
        return lambda: value
    device, differentiated = value.device, value.requires_grad
    empty = partial(
        torch.empty_strided, value.shape, value.stride(), dtype=value.dtype, device=device
    )

    def make() -> Tensor:
        if not differentiated:
            return empty()
        anchor = torch.zeros((), device=device, requires_grad=True)
        return cast("Tensor", _Computed.apply(anchor, empty))  # type: ignore[no-untyped-call]

    return make


class _Computed(torch.autograd.Function):
    """Marks a tensor as computed, so that it may be overwritten, unlike a parameter."""

    @staticmethod
    def forward(context: Any, anchor: Tensor, make: Callable[[], Tensor]) -> Tensor:  # noqa: ANN401
        return make()

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:  # noqa: ANN401
        raise AssertionError("nothing was computed")


class _CodeCache:
    """Inductor's cache of loaded code, cleared only while no thread loads code."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loading = 0
        self._outdated = False

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Return a context in which the cache is not cleared."""
        with self._lock:
            self._loading += 1
        try:
            yield
        finally:
            with self._lock:
                self._loading -= 1
                self._clear_if_idle()

    def clear(self) -> None:
        """Clear the cache as soon as no thread loads code."""
        with self._lock:
            self._outdated = True
            self._clear_if_idle()

    def _clear_if_idle(self) -> None:
        codecache = sys.modules.get("torch._inductor.codecache")
        if self._loading or not self._outdated or codecache is None:
            return
        self._outdated = False
        cache = codecache.PyCodeCache
        for module in list(cache.modules):
            sys.modules.pop(module.__name__, None)
        cache.linemaps.clear()
        cache.cache_clear()


CODE_CACHE = _CodeCache()
"""Code of all networks compiled in this process. Networks in use keep their own code when it is
cleared, and inductor's files remain."""


class CompileRequest(Value):
    """Request to compile the training and evaluation steps of a network."""

    graph: str
    """The graph as JSON."""
    precision: str
    samples: int
    """Number of samples in a batch."""


class CompilerProcess:
    """The compiling process: started by the first request, ended with this object or process.

    Not thread-safe.
    """

    def __init__(self, cores: int, device: int, settings: EngineConfig, ranks: int) -> None:
        """Store the settings; the process is started later.

        Args:
            cores: number of threads of the compiled code, if it computes on CPUs.
            device: index of the accelerator on the host, if there is any.
            settings: settings of the engine whose networks are compiled.
            ranks: number of ranks that train one network together.
        """
        self._command = [sys.executable, "-m", f"{__package__}.compiler_process"]
        self._command += ["--cores", str(cores), "--device", str(device), "--ranks", str(ranks)]
        self._command += ["--settings", settings.model_dump_json()]
        self._process: subprocess.Popen[str] | None = None

    def compile(self, request: CompileRequest) -> str:
        """Wait for the compilation up to the timeout; return the error message, or an empty string.

        Errors are also printed to standard error. After an error, the first step compiles the
        network.
        """
        problem = self._send(request)
        if problem:
            warn(f"the next network is compiled during its steps: {problem}")
        return problem

    def _send(self, request: CompileRequest) -> str:
        process = self._process = self._process or self._started()
        assert process.stdin is not None  # noqa: S101 -- it is a pipe
        assert process.stdout is not None  # noqa: S101 -- it is a pipe
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            _kill_tree(process)

        # A hung process may not even read the request: killing it ends both waits.
        timer = threading.Timer(LIMIT_SECONDS, expire)
        timer.start()
        try:
            process.stdin.write(request.model_dump_json() + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if not line:
            self._process = None  # The next request starts a new process.
            if expired.is_set():
                process.wait()
                return f"the compiler process was killed after {LIMIT_SECONDS:g} s"
            return f"the compiler process ended with status {process.wait()}"
        return str(json.loads(line))

    def _started(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
        )
        weakref.finalize(self, _end, process)
        return process


def _kill_tree(process: subprocess.Popen[str]) -> None:
    """Kill a process and its children, such as a hung C compiler."""
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
    process.kill()


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    with process:  # Waits for the process and closes its pipes.
        pass
