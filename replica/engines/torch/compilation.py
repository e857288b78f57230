"""``torch.compile`` beside training: its check, a back end that only loads, and its own process.

Tracing and lowering a network is up to minutes of Python, whose lock a thread of this process would
take from the one that launches the steps of a training. A second process compiles the next network
instead. Both processes keep compiled code in one folder, that of ``runtime/kernel_caches.py``.
"""

from __future__ import annotations

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
from aiperf_hpc.trial import Value

LIMIT_SECONDS = 600.0
"""Timeout of a compilation: a network as large as those of a search needs one or two minutes."""


def check_compiler(device: torch.device, backend: str | Callable[..., Any] = "inductor") -> None:
    """Compile and execute an addition, before anything is trained.

    On accelerators, compiled code is launched by C code that is compiled here. Container images
    often lack a C compiler; every trial would fail.

    Raises:
        EngineError: that fails.
    """
    try:
        with named_errors():
            torch.compile(_one_more, backend=backend)(torch.zeros(1, device=device))
    except EngineError as error:
        raise EngineError(
            f"{error}; torch.compile needs Triton, a C compiler (gcc) and Python's headers on each "
            "node, or set engine.compile=never"
        ) from None


def _one_more(x: Tensor) -> Tensor:
    return x + 1


class LoadingBackend:
    """A back end of ``torch.compile`` that compiles by another one, and may execute nothing."""

    def __init__(self, backend: str | Callable[..., Any]) -> None:
        self._backend = backend
        self._only = False

    @contextmanager
    def only(self) -> Iterator[None]:
        """Compile what is called in the block, without executing it.

        It returns uninitialized tensors like those that it would, for the code that reads them.
        """
        self._only = True
        try:
            yield
        finally:
            self._only = False

    def __call__(self, module: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        # A second to import, unless a network is compiled.
        from torch._dynamo.backends.registry import lookup_backend

        (output,) = module.graph.find_nodes(op="output")
        nodes = cast("Sequence[fx.Node]", output.args[0])
        makers = [_maker_like(node.meta["example_value"]) for node in nodes]
        with _CODE_CACHE.loading():
            compiled = lookup_backend(self._backend)(module, inputs)
        return lambda *read: [make() for make in makers] if self._only else compiled(*read)


def _maker_like(value: Any) -> Callable[[], Any]:  # noqa: ANN401 -- a tensor, or a number
    """Return a maker of uninitialized tensors like one."""
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
    """Makes a tensor as one that was computed: it may be overwritten, as no parameter may."""

    @staticmethod
    def forward(context: Any, anchor: Tensor, make: Callable[[], Tensor]) -> Tensor:  # noqa: ANN401
        return make()

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:  # noqa: ANN401
        raise AssertionError("nothing was computed")


class _CodeCache:
    """Inductor's cache of the code that it loaded, cleared only while nobody loads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loading = 0
        self._outdated = False

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Keep the cache as it is until the end of the block."""
        with self._lock:
            self._loading += 1
        try:
            yield
        finally:
            with self._lock:
                self._loading -= 1
                self._clear_if_idle()

    def clear(self) -> None:
        """Clear the cache, now or when the last thread that loads is ready."""
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


_CODE_CACHE = _CodeCache()


def forget_compiled_code() -> None:
    """Release the code that inductor keeps of all networks compiled in this process.

    Networks that are in use keep their own code; inductor's files stay.
    """
    _CODE_CACHE.clear()


class CompileRequest(Value):
    """A network whose training and evaluation steps are to be compiled."""

    graph: str
    """The graph as JSON."""
    precision: str
    samples: int
    """Samples of a batch."""


class CompileAnswer(Value):
    """The outcome of a request."""

    error: str = ""
    """One line; empty after success."""


class CompilerProcess:
    """The process; the first request starts it, and it ends with this object or this process.

    For one thread at a time.
    """

    def __init__(self, cores: int, device: int, settings: EngineConfig, ranks: int) -> None:
        """Start nothing yet.

        Args:
            cores: threads of the compiled code, if it computes on CPUs.
            device: the number of the host's accelerator, if there is any.
            settings: those of the engine whose networks are compiled.
            ranks: how many train one network together.
        """
        self._command = [sys.executable, "-m", f"{__package__}.compiler_process"]
        self._command += ["--cores", str(cores), "--device", str(device), "--ranks", str(ranks)]
        self._command += ["--settings", settings.model_dump_json()]
        self._process: subprocess.Popen[str] | None = None

    def compile(self, request: CompileRequest) -> str:
        """Wait for the compilation, up to the time limit; return what went wrong, or nothing.

        After an error, which goes to standard error too, the first step compiles the network.
        """
        problem = self._send(request)
        if problem:
            sys.stderr.write(f"aiperf: the next network is compiled during its steps: {problem}\n")
            sys.stderr.flush()
        return problem

    def _send(self, request: CompileRequest) -> str:
        process = self._process = self._process or self._started()
        assert process.stdin is not None  # noqa: S101 -- it is a pipe
        assert process.stdout is not None  # noqa: S101 -- it is a pipe
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            _kill_tree(process)

        # A process that hangs may not even read the request: killing it ends both waits.
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
            self._process = None  # The next request starts another process.
            if expired.is_set():
                process.wait()
                return f"the process that compiles was ended after {LIMIT_SECONDS:g} s"
            return f"the process that compiles ended with status {process.wait()}"
        return CompileAnswer.model_validate_json(line).error

    def _started(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
        )
        weakref.finalize(self, _end, process)
        return process


def _kill_tree(process: subprocess.Popen[str]) -> None:
    """Kill a process and its children, such as a C compiler that hangs."""
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
    process.kill()


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    with process:  # Waits, and closes its pipes.
        pass
