"""The ``torch`` engine: native PyTorch on CPUs, NVIDIA and AMD GPUs, and Ascend NPUs.

Parameters are views of one flat buffer in fp32, so that an update is one pass over memory. For
bf16 and fp16 the forward pass reads a copy of it in that type, made once after each update
instead of once for each layer that autocast meets; normalisations and the loss stay in fp32.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch._functorch import config as functorch_config

from aiperf_hpc.config import EngineConfig
from aiperf_hpc.errors import EngineError, NonFiniteLossError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.weights.calibration import calibrate, transparent
from aiperf_hpc.morphism.weights.checkpoint import Weights, check_weights
from aiperf_hpc.objective import Objective
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.replica.data.base import Batch
from aiperf_hpc.replica.engines.base import (
    Buffer,
    EvaluationSums,
    OptimizerState,
    empty_batch,
    evaluated,
    shrinking,
    step_in_halves,
)
from aiperf_hpc.replica.engines.checksum import PendingChecksum
from aiperf_hpc.replica.engines.torch.checksum import begin_checksum
from aiperf_hpc.replica.engines.torch.compiler import Compiler, CompileRequest
from aiperf_hpc.replica.engines.torch.compiler_check import check_compiler
from aiperf_hpc.replica.engines.torch.device import (
    Feed,
    allow_tf32,
    channels_first,
    choose_device,
    compute_on,
    filled,
    give_back_freed_memory,
    keep_freed_memory,
    seen_accelerators,
)
from aiperf_hpc.replica.engines.torch.flat_layout import LEAST_AXES, FlatLayout
from aiperf_hpc.replica.engines.torch.graph import build_module, in_parts
from aiperf_hpc.replica.engines.torch.layers import MomentsInterpreter
from aiperf_hpc.replica.engines.torch.loading import Loading, forget_compiled_code
from aiperf_hpc.replica.engines.torch.module_code import attribute
from aiperf_hpc.replica.engines.torch.named_errors import named_errors
from aiperf_hpc.replica.engines.torch.objective_rows import loss_of, quality_of
from aiperf_hpc.replica.engines.torch.optimizers import OPTIMIZERS
from aiperf_hpc.trial import Hyperparameters

THREAD_OPERATIONS = 5e8
"""Operations of a training step that one more thread is worth: with fewer, threads wait more than
they work."""
BUCKET_BYTES = 25 * 2**20
"""Bytes of gradients that are reduced together, as PyTorch's own data parallelism has it."""
ALIGNED = 128
"""Elements by whose multiples parameters begin in a flat buffer: 256 bytes, in types of two. An
accelerator reads what begins at no multiple of 16 in smaller pieces, by slower kernels."""
COMPILER_BYTES = 2**30
"""What the context of the process that compiles takes of an accelerator, at most."""
TUNING_BYTES = 2 * 2**30
"""Workspace for cuDNN while it times its kernels for a shape. Some want a few GiB; PyTorch leaves
out those that do not get theirs, and the fastest may be among them."""
Modules = tuple[Callable[..., Tensor], Callable[..., Tensor]]
"""What gives outputs of a graph's inputs in training, and in inference."""
_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Placement(NamedTuple):
    """Where an engine computes, and how."""

    device: torch.device
    cores: int
    """The threads that it computes on, where the device is the CPU."""
    compiled: bool
    """Whether ``torch.compile`` makes code of each network."""
    backend: str | Callable[..., Any] = "inductor"
    """What it makes the code by."""
    tuned: bool = False
    """Whether convolutions of a trial's batch are by the kernels that were the fastest when they
    were timed: at a shape's first execution, by the thread that executes it, and for it alone."""
    parted: bool = False
    """Whether each bucket of gradients has compiled code of its own, so that it is final before the
    backward pass is over: for ranks that reduce one while the next is computed."""


class TorchNetwork:
    """A network of the ``torch`` engine; see ``engines.base.RankNetwork``."""

    def __init__(
        self,
        graph: Graph,
        weights: Weights,
        hyperparameters: Hyperparameters,
        optimizer_state: OptimizerState | None,
        objective: Objective,
        placement: Placement,
    ) -> None:
        device = placement.device
        check_weights(graph, weights)
        self._graph = graph
        self._measure = objective.quality
        self._objective = objective
        self._loss_of = loss_of(objective, graph)
        self._quality_of = quality_of(objective.measure, graph)
        self._used = hyperparameters
        self._device = device
        self._transparent = transparent(graph, weights)
        self._type = _TYPES[hyperparameters.precision]
        # The backward pass reaches the last parameters first.
        reached = dict(reversed(list(graph.parameters.items())))
        self._layout = FlatLayout(reached, ALIGNED)
        self._statistics_layout = FlatLayout(graph.statistics)
        with named_errors():
            self._feed = Feed(device)
            self._flat, self._statistics = self._feed.brought(
                self._layout.host_buffer(weights), self._statistics_layout.host_buffer(weights)
            )
            self._views = self._layout.views(self._flat)
            small = shrinking(graph, hyperparameters)
            self._optimizer = OPTIMIZERS[hyperparameters.optimizer](
                self._flat, self._layout, small.decayed, small.used
            )
            self._optimizer.penalise(small.penalties)
            self._optimizer.load(optimizer_state, self._feed.brought)
            self._build_modules(on_cpu=device.type == "cpu" and not placement.compiled)
        self._cores, self._tuned = placement.cores, placement.tuned
        self._operations = count(graph).training
        self._buckets = _buckets(self._layout)
        self._eager: Modules = (self._training, self._inference)
        self._loading = Loading(placement.backend)
        self._modules = self._compiled(placement.parted) if placement.compiled else self._eager
        self._compiled_size: int | None = None
        """The samples of a batch that is computed by compiled code; 0 for none, None until the
        first batch of all."""
        self._loss = torch.zeros((), dtype=torch.float64, device=device)
        self._steps = 0
        added = 0 if self._measure.rows else len(self._measure.sums)
        self._evaluated = torch.zeros(1 + added, dtype=torch.float64, device=device)
        """The sums of the losses and of what the measure adds."""
        self._rows: list[Sequence[Tensor]] = []
        """The measure's rows, a batch each."""
        self._predicts = objective.predictions
        self._predicted: list[Tensor] = []
        """The most probable classes, a batch each."""
        self._samples = 0
        self._scaler = torch.amp.GradScaler(device.type, enabled=self._type is torch.float16)
        self._scaler.scale(torch.zeros((), device=device))  # Makes its tensors.
        self._gradients: Tensor | None = None
        self._gradient_views: list[Tensor] = []
        self._giving: _Giving | None = None

    def _build_modules(self, *, on_cpu: bool) -> None:
        """Make what is differentiated, and both modules of it."""
        self._low = None if self._type is torch.float32 else self._flat.to(self._type)
        copies = self._views if self._low is None else self._layout.views(self._low)
        # Scales and shifts stay in fp32, as normalisation does.
        self._leaves = {
            name: nn.Parameter(self._views[name] if _is_of_norm(name) else copies[name])
            for name in self._views
        }
        # As data, each has a version of its own: autograd takes views of one tensor for one.
        statistics = self._statistics_layout.views(self._statistics).items()
        tensors = self._leaves | {name: view.data for name, view in statistics}
        self._training = build_module(self._graph, tensors, training=True, on_cpu=on_cpu)
        self._inference = build_module(self._graph, tensors, training=False, on_cpu=on_cpu)

    def _compiled(self, parted: bool) -> Modules:
        """Return modules that are compiled when they are called first."""
        training = self._training
        if parted and len(self._buckets) > 1:
            training = in_parts(training, self._bucket_of_each())
            for name, part in list(training.named_children()):
                setattr(training, name, self._to_compile(part))
            return training, self._to_compile(self._inference)
        return self._to_compile(training), self._to_compile(self._inference)

    def _to_compile(self, module: nn.Module) -> Any:  # noqa: ANN401 -- the module, to call
        return torch.compile(module, dynamic=False, backend=self._loading)

    def _bucket_of_each(self) -> dict[str, int]:
        """Return the bucket of each parameter, by its attribute of a module."""
        ends = [place.stop for place in self._buckets]
        return {
            attribute(name): bisect_right(ends, place.start)
            for name, place in self._layout.places.items()
        }

    def _outputs(self, inputs: Sequence[Tensor], *, training: bool) -> Tensor:
        """A compiled module is for one size of a batch; the rest of an epoch has another.

        In inference, where samples know nothing of each other, more than half of a batch is filled
        up to one. A training step is executed as it is: others would change what it normalises by.
        """
        samples = len(inputs[0])
        if self._compiled_size is None:
            self._compiled_size = samples
        size = self._compiled_size
        if not training and self._modules is not self._eager and samples < size < 2 * samples:
            return self._of_size([filled(t, size) for t in inputs], training=False)[:samples]
        return self._of_size(inputs, training=training)

    def _of_size(self, inputs: Sequence[Tensor], *, training: bool) -> Tensor:
        samples = len(inputs[0])
        self._use_threads(samples)
        whole = samples == self._compiled_size
        if self._tuned:
            # What an epoch leaves over comes once in an epoch: that is not worth it.
            torch.backends.cudnn.benchmark = whole
        modules = self._modules if whole else self._eager
        module = modules[0 if training else 1]
        return module(*self._lowered(inputs)).float()

    def _use_threads(self, samples: int) -> None:
        useful = int(self._operations * samples / THREAD_OPERATIONS)
        torch.set_num_threads(min(self._cores, max(1, useful)))

    def _lowered(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Return real numbers in the compute type, and integers as they are."""
        return [t.to(self._type) if t.is_floating_point() else t for t in inputs]

    def _backward(self, batch: Batch, share: float = 1.0) -> Tensor:
        """Put gradients, times share and loss scale, beside the leaves; return the mean loss."""
        inputs, targets = self._feed.inputs(batch, self._graph.inputs), self._feed.targets(batch)
        output = self._outputs(inputs, training=True)
        loss = self._loss_of(output, targets, self._used.label_smoothing).mean()
        own = loss if share == 1.0 else loss * share
        self._scaler.scale(own).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def train_step(self, batch: Batch, learning_rate: float) -> None:
        with named_errors():
            self._show(evaluated=False)
            loss = self._backward(batch)
            leaves = list(self._leaves.values())
            gradients = [cast("Tensor", leaf.grad) for leaf in leaves]
            for leaf in leaves:
                # None and not zeros: so the next backward pass writes instead of adding.
                leaf.grad = None
            if self._low is None:
                parts = [_flattened(gradient) for gradient in gradients]
                self._optimizer.step(parts, learning_rate)
            else:
                flat = self._gradient_buffer()
                _copy_each(self._gradient_views, gradients)
                del gradients
                self._update([flat], learning_rate)
            # Added up on the device: to read it here would be to wait for the step.
            self._loss += loss
            self._steps += 1
            self._feed.done()

    def _gradient_buffer(self) -> Tensor:
        """Return a flat buffer of all gradients in fp32, made when it is needed first."""
        if self._gradients is None:
            self._gradients = torch.zeros_like(self._flat)
            self._gradient_views = list(self._layout.views(self._gradients).values())
        return self._gradients

    def _update(self, flats: list[Tensor], learning_rate: float) -> None:
        """Update all parameters with flat gradients, which follow one another."""
        if self._scaler.is_enabled():
            # Where GradScaler looks for them, and undoes their scale unless the optimizer does.
            self._flat.grad = self._gradient_buffer()
            places = list(self._flat.grad.split_with_sizes([len(flat) for flat in flats]))
            torch._foreach_copy_(places, flats)
            flats = places
        self._scaler.step(self._optimizer, flats, learning_rate)
        self._scaler.update()
        self._flat.grad = None
        self._cast()

    def _show(self, *, evaluated: bool) -> None:
        """Have the layers read the parameters that are evaluated, or those that are trained."""
        if self._optimizer.show(evaluated=evaluated):
            self._cast()

    def _cast(self) -> None:
        if self._low is not None:
            self._low.copy_(self._flat)

    @property
    def buckets(self) -> tuple[int, ...]:
        return tuple(place.stop - place.start for place in self._buckets)

    def await_room(self) -> None:
        with named_errors():
            self._feed.await_room()

    def gradients(self, batch: Batch, share: float, ready: Callable[[Buffer], None]) -> None:
        """In fp16 the gradients are those of the loss times its scale, which ``apply`` undoes."""
        with named_errors():
            self._show(evaluated=False)
            self._steps += 1
            flat = self._gradient_buffer()
            if not batch.size:
                # The others wait for buckets of this rank, though it has no sample.
                flat.zero_()
                for place in self._buckets:
                    ready(flat[place])
                return
            if self._giving is None:
                self._giving = _Giving(self._leaves, self._layout, self._buckets)
            with self._giving.to(flat, self._gradient_views, ready):
                self._loss += share * self._backward(batch, share)

    def zeros(self, bucket: int) -> Buffer:
        with named_errors():
            return self._gradient_buffer()[self._buckets[bucket]].zero_()

    def apply(self, buckets: Sequence[Buffer], learning_rate: float) -> None:
        with named_errors():
            flats = [torch.as_tensor(bucket, device=self._device) for bucket in buckets]
            self._show(evaluated=False)
            self._update(flats, learning_rate)
            self._feed.done()

    def compile(self, samples: int) -> None:
        """Compile what steps with so many samples execute, and execute nothing."""
        graph, device = self._graph, self._device
        inputs = [
            channels_first(
                torch.empty(
                    (samples, *graph.shapes[name]),
                    dtype=self._input_type(graph.dtype(name)),
                    device=device,
                )
            )
            for name in graph.inputs
        ]
        self._compiled_size = samples
        self._use_threads(samples)
        training, inference = self._modules
        with named_errors(), self._loading.only():
            training(*inputs)
            with torch.no_grad():
                inference(*inputs)

    def _input_type(self, dtype: str) -> torch.dtype:
        """Return the type in which modules read numbers of such a type, as ``_lowered`` has it."""
        found = torch.from_numpy(np.zeros(0, dtype)).dtype
        return self._type if found.is_floating_point else found

    def warm(self, batch_size: int, *, halves: bool = False) -> None:
        state = (self._flat, self._statistics, self._loss, self._evaluated)
        kept, counts = [tensor.clone() for tensor in state], (self._steps, self._samples)
        restore_optimizer = self._optimizer.snapshot()
        scale = self._scaler.state_dict()
        batch = empty_batch(self._graph, self._objective, batch_size)
        # What is warmed with one sample has no memory for more yet: that is worth no compilation.
        self._compiled_size = batch_size if batch_size > 1 else 0
        try:
            if halves:
                step_in_halves(self, batch, 0.0)
            else:
                self.train_step(batch, 0.0)
            self.evaluate_step(batch)
            with named_errors():
                self._loss.item()  # Waits.
        finally:
            for tensor, values in zip(state, kept, strict=True):
                tensor.copy_(values)
            restore_optimizer()
            self._cast()
            self._steps, self._samples = counts
            self._rows.clear()
            self._predicted.clear()
            self._scaler.load_state_dict(scale)
        if self._device.type != "cpu":
            # Peaks are a training's from here on, not those of the tuning of its kernels.
            torch.get_device_module(self._device.type).reset_peak_memory_stats(self._device)

    def calibrate(self, batch: Batch) -> tuple[str, ...]:
        return calibrate(self._graph, self._transparent, lambda: self.moments(batch), self.assign)

    def moments(self, batch: Batch) -> NDArray[np.float32]:
        with named_errors(), torch.no_grad():
            inputs = self._feed.inputs(batch, self._graph.inputs)
            measuring = MomentsInterpreter(self._training)
            measuring.run(*self._lowered(inputs))
            flat = torch.cat([*measuring.found, torch.zeros(0, device=self._device)])
            return cast("NDArray[np.float32]", flat.cpu().numpy())

    def assign(self, weights: Weights) -> None:
        parameters, statistics = (
            {name: array for name, array in weights.items() if name in layout.shapes}
            for layout in (self._layout, self._statistics_layout)
        )
        with named_errors():
            self._optimizer.assign(parameters)
            self._statistics_layout.write(self._statistics, statistics)
            self._cast()

    def checksum(self) -> PendingChecksum:
        with named_errors():
            pending = begin_checksum(self._optimizer.evaluated)

        def wait() -> int:
            with named_errors():
                return pending()

        return wait

    def statistics(self) -> NDArray[np.float32]:
        with named_errors():
            return np.array(self._statistics.cpu().numpy())

    def set_statistics(self, flat: NDArray[np.float32]) -> None:
        with named_errors():
            self._statistics.copy_(torch.from_numpy(flat))

    def drain_training(self) -> float:
        with named_errors():
            loss, steps = self._loss.item(), self._steps
            self._loss.zero_()
            self._steps = 0
        if not math.isfinite(loss):
            raise NonFiniteLossError(
                "the training loss is not finite; a lower training.learning_rate may help"
            )
        return loss / steps if steps else 0.0

    def evaluate_step(self, batch: Batch) -> None:
        with named_errors(), torch.no_grad():
            self._show(evaluated=True)
            inputs, targets = (
                self._feed.inputs(batch, self._graph.inputs),
                self._feed.targets(batch),
            )
            output = self._outputs(inputs, training=False)
            loss = self._loss_of(output, targets, 0.0).sum()
            parts = self._quality_of(output, targets)
            if self._measure.rows:
                self._rows.append(parts)
                parts = ()
            if self._predicts:
                self._predicted.append(output.argmax(dim=1))
            self._evaluated += torch.stack([part.double() for part in (loss, *parts)])
            self._samples += batch.size
            self._feed.done()

    def drain_evaluation(self) -> EvaluationSums:
        with named_errors():
            loss, *added = self._evaluated.tolist()
            samples = self._samples
            rows = [
                torch.cat(part).double().cpu().numpy() for part in zip(*self._rows, strict=True)
            ]
            predicted = torch.cat(self._predicted).cpu().numpy() if self._predicted else None
            self._samples = 0
            self._rows.clear()
            self._predicted.clear()
            self._evaluated.zero_()
        if not math.isfinite(loss):
            raise NonFiniteLossError(
                "the validation loss is not finite; a lower training.learning_rate may help"
            )
        return evaluated(self._measure, loss, samples, rows or added, predicted)

    def outputs(self, inputs: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        with named_errors(), torch.no_grad():
            self._show(evaluated=True)
            given = self._feed.inputs(Batch(inputs, {}), self._graph.inputs)
            found = self._inference(*self._lowered(given)).float()
            return cast("NDArray[np.float32]", found.cpu().numpy())

    def weights(self) -> Weights:
        with named_errors():
            found = self._layout.read(self._optimizer.evaluated)
            found |= self._statistics_layout.read(self._statistics)
        return {name: found[name] for name in (*self._graph.parameters, *self._graph.statistics)}

    def optimizer_state(self) -> OptimizerState:
        with named_errors():
            return self._optimizer.arrays()

    def close(self) -> None:
        del self._training, self._inference, self._eager, self._modules, self._leaves, self._views
        del self._optimizer, self._giving
        self._flat = self._statistics = torch.empty(0)
        self._low = self._gradients = None
        self._gradient_views = []
        forget_compiled_code()
        if self._device.type == "cpu":
            give_back_freed_memory()
        else:
            torch.get_device_module(self._device.type).empty_cache()


def _flattened(gradient: Tensor) -> Tensor:
    """Return a gradient as it lies in a flat buffer: a view, where it lies so already.

    The fused kernel copies what is not contiguous, which channels-last kernels are not.
    """
    return (gradient.movedim(1, -1) if gradient.ndim >= LEAST_AXES else gradient).reshape(-1)


def _is_of_norm(name: str) -> bool:
    return name.endswith(("/gamma", "/beta"))


def _buckets(layout: FlatLayout) -> list[slice]:
    """Return the places of the buckets: whole parameters, in the order of the layout."""
    buckets = []
    start = size = 0
    for place in layout.places.values():
        size += place.stop - place.start
        end = layout.end(place)
        if size * 4 >= BUCKET_BYTES or end == layout.size:
            buckets.append(slice(start, end))
            start, size = end, 0
    return buckets


def _copy_each(to: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy tensors, those of one type together: accelerators copy from several types one by one."""
    for dtype in dict.fromkeys(value.dtype for value in values):
        numbers = [number for number, value in enumerate(values) if value.dtype is dtype]
        torch._foreach_copy_([to[n] for n in numbers], [values[n] for n in numbers])


class _Giving:
    """Gives buckets of gradients away while the backward pass is still going on."""

    def __init__(
        self, leaves: Mapping[str, nn.Parameter], layout: FlatLayout, buckets: Sequence[slice]
    ) -> None:
        self._buckets = buckets
        self._active = False
        self._members = [0] * len(buckets)
        for number, (name, leaf) in enumerate(leaves.items()):
            place = layout.places[name]
            (bucket,) = (i for i, b in enumerate(buckets) if b.start <= place.start < b.stop)
            self._members[bucket] += 1
            hook = self._hook(number, bucket)
            leaf.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    @contextmanager
    def to(
        self, flat: Tensor, views: Sequence[Tensor], ready: Callable[[Buffer], None]
    ) -> Iterator[None]:
        """Give what a backward pass within the block makes final, by way of a flat buffer."""
        self._flat = flat
        self._views = views
        self._ready = ready
        self._final: list[list[tuple[int, Tensor]]] = [[] for _ in self._buckets]
        self._next = 0
        self._active = True
        try:
            yield
        finally:
            self._active = False
            del self._flat, self._views, self._ready, self._final

    def _hook(self, number: int, bucket: int) -> Callable[[Tensor], None]:
        def final(leaf: Tensor) -> None:
            if not self._active:
                return
            self._final[bucket].append((number, cast("Tensor", leaf.grad)))
            leaf.grad = None
            self._give()

        return final

    def _give(self) -> None:
        """Give all buckets that are complete, and those before them too."""
        # In one order on every rank, or they would sum different buckets with each other.
        while self._next < len(self._buckets):
            found = self._final[self._next]
            if len(found) < self._members[self._next]:
                return
            _copy_each([self._views[n] for n, _ in found], [gradient for _, gradient in found])
            found.clear()
            place = self._buckets[self._next]
            self._next += 1
            self._ready(self._flat[place])


class TorchEngine:
    """The ``torch`` engine; see ``engines.base.RankEngine``."""

    name = "torch"

    def __init__(
        self, placement: Placement, objective: Objective, compiler: Compiler | None = None
    ) -> None:
        self._placement = placement
        self._device = placement.device
        self._compiler = compiler
        self.objective = objective

    @property
    def versions(self) -> dict[str, str]:
        return {"torch": torch.__version__}

    @property
    def accelerators(self) -> tuple[str, ...]:
        if self._device.type == "cpu":
            return ()
        return (torch.get_device_module(self._device.type).get_device_name(self._device),)

    @property
    def memory_bytes(self) -> int | None:
        if self._device.type == "cpu":
            return None
        free, _ = torch.get_device_module(self._device.type).mem_get_info(self._device)
        compiling = COMPILER_BYTES if self._compiler is not None else 0
        return int(free) - compiling - (TUNING_BYTES if self._placement.tuned else 0)

    @property
    def warms_alone(self) -> bool:
        return self._placement.tuned

    def compile_ahead(self, graph: Graph, precision: str, samples: int) -> str:
        if self._compiler is None or samples <= 1:  # As ``warm``, which compiles for no one.
            return ""
        text = graph.to_json()
        request = CompileRequest(graph=text, precision=precision, samples=samples)
        return self._compiler.compile(request)

    def build(
        self,
        graph: Graph,
        weights: Weights,
        hyperparameters: Hyperparameters,
        optimizer_state: OptimizerState | None = None,
    ) -> TorchNetwork:
        if hyperparameters.precision == "fp16" and self._device.type == "cpu":
            raise EngineError(
                "training.precision=fp16 needs an accelerator: PyTorch does not train in it on "
                "CPUs; use bf16"
            )
        compute_on(self._device)  # Most networks are built by another thread than the trainer's.
        network = TorchNetwork(
            graph,
            weights,
            hyperparameters,
            optimizer_state,
            self.objective,
            self._placement,
        )
        if self.warms_alone and self._placement.compiled and hyperparameters.batch_size > 1:
            # So that less is left to be done with nothing beside it.
            network.compile(hyperparameters.batch_size)
        return network

    def probe(self) -> Tensor:
        with named_errors():
            return torch.ones(1, device=self._device)


def accelerators_here(settings: EngineConfig) -> tuple[str, int]:
    """Return the vendor and the number of the accelerators that are seen here.

    Raises:
        EngineError: there is no device of the kind that is asked for.
    """
    return seen_accelerators(settings.device)


def make_engine(
    cores: int, device: int, settings: EngineConfig, objective: Objective, ranks: int
) -> TorchEngine:
    """Return the engine.

    Args:
        cores: the threads it computes on, where it computes on CPUs.
        device: which of the host's accelerators it computes on, where there are any.
        settings: which kind of device, and whether it compiles.
        objective: what its networks are trained for.
        ranks: those that train one network together.

    Raises:
        EngineError: there is no device of the kind that is asked for, or nothing can be compiled
            for it here.
    """
    placement = placement_of(cores, device, settings, ranks)
    if placement.compiled and placement.device.type == "cuda":
        check_compiler(placement.device)
    compiler = Compiler(cores, device, settings, ranks) if placement.compiled else None
    return TorchEngine(placement, objective, compiler)


def placement_of(cores: int, device: int, settings: EngineConfig, ranks: int) -> Placement:
    """Choose where and how to compute, and set up this process for it; as ``make_engine``."""
    torch.set_num_threads(cores)
    chosen = choose_device(settings.device, device)
    if chosen.type == "cpu":
        keep_freed_memory()
    if chosen.type == "cuda":
        allow_tf32(settings.tf32)
    compiled = settings.compile == "always" or (
        settings.compile == "auto" and chosen.type == "cuda"
    )
    if compiled:
        # Both passes at once, in whichever process: a backward pass is else compiled by its first
        # execution. Compiled code is found again by a key that has this setting in it.
        functorch_config.force_non_lazy_backward_lowering = True
    return Placement(chosen, cores, compiled, tuned=chosen.type == "cuda", parted=ranks > 1)
