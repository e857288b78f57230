"""A network of the ``torch`` engine.

Parameters are views of one flat fp32 buffer, so that an update is one pass over memory. For bf16
and fp16, the forward pass reads a copy of the buffer in that type. It is updated once after each
update of the parameters, unlike with autocast, which casts per layer. Normalizations and the loss
remain in fp32.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from aiperf_hpc.morphism.weights.weight_file import Weights
from aiperf_hpc.objective import Objective
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.replica.data.base import Batch
from aiperf_hpc.replica.engines import base
from aiperf_hpc.replica.engines.base import regularization
from aiperf_hpc.replica.engines.torch.compilation import CODE_CACHE, LoadingBackend
from aiperf_hpc.replica.engines.torch.device import (
    Feed,
    padded,
    release_freed_memory,
    sample_inputs,
)
from aiperf_hpc.replica.engines.torch.flat_layout import FlatLayout, begin_checksum
from aiperf_hpc.replica.engines.torch.gradients import BucketHooks, buckets_of, copy_each, flattened
from aiperf_hpc.replica.engines.torch.graph import build_module, split_by_bucket
from aiperf_hpc.replica.engines.torch.layers import MomentsInterpreter, attribute
from aiperf_hpc.replica.engines.torch.named_errors import named_errors
from aiperf_hpc.replica.engines.torch.objectives import loss_of, quality_of
from aiperf_hpc.replica.engines.torch.optimizers import OPTIMIZERS

THREAD_OPERATIONS = 5e8
"""Operations of a training step per thread; with fewer, threads wait longer than they compute."""
ALIGNED = 128
"""Alignment of parameters in a flat buffer in elements: 256 bytes in two-byte types. An accelerator
uses slower kernels, which read smaller pieces, for tensors that are not aligned to 16 bytes.
"""
Modules = tuple[Callable[..., Tensor], Callable[..., Tensor]]
"""The modules for training and for inference."""
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Placement(NamedTuple):
    """Device and mode of an engine's computation."""

    device: torch.device
    cores: int
    """Number of threads, if the device is the CPU."""
    compiled: bool
    """Whether ``torch.compile`` compiles each network."""
    backend: str | Callable[..., Any] = "inductor"
    """The back end of ``torch.compile``."""
    tuned: bool = False
    """Whether convolutions of a trial's batch size use the fastest kernels. The executing thread
    times kernels at the first execution of a shape; the choice is valid in that thread only."""
    split: bool = False
    """Whether the code is compiled per bucket of gradients. Each bucket is then final before the
    backward pass ends, and ranks reduce one bucket while they compute the next."""


class TorchNetwork(base.FrameworkNetwork, errors=named_errors):
    """A network of the ``torch`` engine; see ``engines.base.RankNetwork``."""

    def __init__(
        self, state: base.NetworkState, objective: Objective, placement: Placement
    ) -> None:
        super().__init__(state, objective)
        graph, used, device = state.graph, state.hyperparameters, placement.device
        self._device, self._used = device, used
        self._loss_of = loss_of(objective, graph)
        self._quality_of = quality_of(objective.metric, graph)
        self._type = TYPES[used.precision]
        # The backward pass reaches the last parameters first.
        self._layout = FlatLayout(dict(reversed(list(graph.parameters.items()))), ALIGNED)
        self._statistics_layout = FlatLayout(graph.statistics)
        with named_errors():
            self._feed = Feed(device)
            layouts = self._layout, self._statistics_layout
            buffers = (layout.host_buffer(state.weights) for layout in layouts)
            self._flat, self._statistics = self._feed.to_device(*buffers)
            self._optimizer = OPTIMIZERS[used.optimizer](
                self._flat, self._layout, regularization(graph, used)
            )
            self._optimizer.load(state.optimizer_state, self._feed.to_device)
            self._build_modules(on_cpu=device.type == "cpu" and not placement.compiled)
        self._cores, self._tuned = placement.cores, placement.tuned
        self._operations = count(graph).training
        self._buckets = buckets_of(self._layout)
        self._eager: Modules = (self._training, self._inference)
        self._loading = LoadingBackend(placement.backend)
        self._modules = self._compiled(placement.split) if placement.compiled else self._eager
        self._compiled_size: int | None = None
        """Batch size of the compiled code; 0 without compiled code, None until the first batch."""
        self._loss = torch.zeros((), dtype=torch.float64, device=device)
        self._evaluated = torch.zeros(self._sum_count, dtype=torch.float64, device=device)
        """Running sums of the losses and the metric."""
        self._scaler = torch.amp.GradScaler(device.type, enabled=self._type is torch.float16)
        self._scaler.scale(torch.zeros((), device=device))  # Allocates its tensors.
        self._gradients: Tensor | None = None
        self._gradient_views: list[Tensor] = []
        self._hooks: BucketHooks | None = None

    def _build_modules(self, *, on_cpu: bool) -> None:
        """Create the differentiated tensors and both modules."""
        self._low = None if self._type is torch.float32 else self._flat.to(self._type)
        views = self._layout.views(self._flat)
        copies = views if self._low is None else self._layout.views(self._low)
        # Scales and shifts remain in fp32, as do normalizations.
        self._leaves = {
            name: nn.Parameter((views if name.endswith(("/gamma", "/beta")) else copies)[name])
            for name in views
        }
        # With ``data``, each has its own version counter; autograd treats views of a tensor as one.
        statistics = self._statistics_layout.views(self._statistics).items()
        tensors = self._leaves | {name: view.data for name, view in statistics}
        self._training = build_module(self._graph, tensors, training=True, on_cpu=on_cpu)
        self._inference = build_module(self._graph, tensors, training=False, on_cpu=on_cpu)

    def _compiled(self, split: bool) -> Modules:
        """Return modules that are compiled on their first call."""
        training = self._training
        if split and len(self._buckets) > 1:
            training = split_by_bucket(training, self._bucket_of_each())
            for name, part in list(training.named_children()):
                setattr(training, name, self._to_compile(part))
            return training, self._to_compile(self._inference)
        return self._to_compile(training), self._to_compile(self._inference)

    def _to_compile(self, module: nn.Module) -> Any:  # noqa: ANN401 -- the module, to call
        return torch.compile(module, dynamic=False, backend=self._loading)

    def _bucket_of_each(self) -> dict[str, int]:
        """Return the bucket of each parameter, by its attribute in a module."""
        ends = [place.stop for place in self._buckets]
        return {
            attribute(name): bisect_right(ends, place.start)
            for name, place in self._layout.places.items()
        }

    def _outputs(self, inputs: Sequence[Tensor], *, training: bool) -> Tensor:
        """Execute a batch with the code for its size.

        A compiled module supports one batch size, but the last batch of an epoch may be smaller. In
        inference, samples are independent, and a batch of more than half the compiled size is
        padded. In training, padding would change the batch statistics.
        """
        samples = len(inputs[0])
        if self._compiled_size is None:
            self._compiled_size = samples
        size = self._compiled_size
        if not training and self._modules is not self._eager and samples < size < 2 * samples:
            return self._outputs([padded(t, size) for t in inputs], training=False)[:samples]
        self._use_threads(samples)
        whole = samples == size
        if self._tuned:
            # The last batch occurs once per epoch: timing kernels for it would not pay off.
            torch.backends.cudnn.benchmark = whole
        module = (self._modules if whole else self._eager)[0 if training else 1]
        return module(*self._lowered(inputs)).float()

    def _use_threads(self, samples: int) -> None:
        useful = int(self._operations * samples / THREAD_OPERATIONS)
        torch.set_num_threads(min(self._cores, max(1, useful)))

    def _lowered(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Return real numbers in the compute type, and integers unchanged."""
        return [t.to(self._type) if t.is_floating_point() else t for t in inputs]

    def _backward(self, batch: Batch, share: float = 1.0) -> Tensor:
        """Compute the gradients of the leaves, times share and loss scale; return the mean loss."""
        inputs, targets = self._feed.inputs(batch, self._graph.inputs), self._feed.targets(batch)
        output = self._outputs(inputs, training=True)
        loss = self._loss_of(output, targets, self._used.label_smoothing).mean()
        own = loss if share == 1.0 else loss * share
        self._scaler.scale(own).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def train_step(self, batch: Batch, learning_rate: float) -> None:
        self._show(evaluated=False)
        loss = self._backward(batch)
        leaves = list(self._leaves.values())
        gradients = [cast("Tensor", leaf.grad) for leaf in leaves]
        for leaf in leaves:
            # None instead of zeros: the next backward pass writes instead of adding.
            leaf.grad = None
        if self._low is None:
            parts = [flattened(gradient) for gradient in gradients]
            self._optimizer.step(parts, learning_rate)
        else:
            flat = self._gradient_buffer()
            copy_each(self._gradient_views, gradients)
            del gradients
            self._update([flat], learning_rate)
        # Summed on the device: reading the loss here would wait for the step.
        self._loss += loss
        self._steps += 1
        self._feed.done()

    def _gradient_buffer(self) -> Tensor:
        """Return a flat fp32 buffer of all gradients, allocated by the first call."""
        if self._gradients is None:
            self._gradients = torch.zeros_like(self._flat)
            self._gradient_views = list(self._layout.views(self._gradients).values())
        return self._gradients

    def _update(self, flats: list[Tensor], learning_rate: float) -> None:
        """Update all parameters with consecutive flat gradients."""
        if self._scaler.is_enabled():
            # GradScaler reads the gradients here, and unscales them unless the optimizer does.
            self._flat.grad = self._gradient_buffer()
            places = list(self._flat.grad.split_with_sizes([len(flat) for flat in flats]))
            torch._foreach_copy_(places, flats)
            flats = places
        self._scaler.step(self._optimizer, flats, learning_rate)
        self._scaler.update()
        self._flat.grad = None
        self._cast()

    def _show(self, *, evaluated: bool) -> None:
        """Let the layers read the evaluated or the trained parameters."""
        if self._optimizer.show(evaluated=evaluated):
            self._cast()

    def _cast(self) -> None:
        if self._low is not None:
            self._low.copy_(self._flat)

    @property
    def buckets(self) -> tuple[int, ...]:
        return tuple(place.stop - place.start for place in self._buckets)

    def await_room(self) -> None:
        self._feed.await_room()

    def gradients(self, batch: Batch, share: float, ready: Callable[[base.Buffer], None]) -> None:
        """Compute gradients; in fp16, they are scaled by the loss scale, which ``apply`` undoes."""
        self._show(evaluated=False)
        self._steps += 1
        flat = self._gradient_buffer()
        if not batch.size:
            # The other ranks wait for this rank's buckets, although it has no samples.
            flat.zero_()
            for place in self._buckets:
                ready(flat[place])
            return
        if self._hooks is None:
            self._hooks = BucketHooks(self._leaves, self._layout, self._buckets)
        with self._hooks.active(flat, self._gradient_views, ready):
            self._loss += share * self._backward(batch, share)

    def zeros(self, bucket: int) -> base.Buffer:
        return self._gradient_buffer()[self._buckets[bucket]].zero_()

    def apply(self, buckets: Sequence[base.Buffer], learning_rate: float) -> None:
        flats = [torch.as_tensor(bucket, device=self._device) for bucket in buckets]
        self._show(evaluated=False)
        self._update(flats, learning_rate)
        self._feed.done()

    @named_errors()
    def compile(self, samples: int) -> None:
        """Compile the code of steps with this many samples without executing it."""
        inputs = sample_inputs(self._graph, samples, self._device, self._type)
        self._compiled_size = samples
        self._use_threads(samples)
        training, inference = self._modules
        with self._loading.only():
            training(*inputs)
            with torch.no_grad():
                inference(*inputs)

    @contextmanager
    def _restored(self, batch_size: int) -> Iterator[None]:
        state = (self._flat, self._statistics, self._loss, self._evaluated)
        copies = [tensor.clone() for tensor in state]
        restore_optimizer = self._optimizer.snapshot()
        scale = self._scaler.state_dict()
        # A network warmed with one sample has no memory for more yet: do not compile.
        self._compiled_size = batch_size if batch_size > 1 else 0
        try:
            yield
            self._loss.item()  # Waits for the device.
        finally:
            for tensor, values in zip(state, copies, strict=True):
                tensor.copy_(values)
            restore_optimizer()
            self._cast()
            self._scaler.load_state_dict(scale)
        if self._device.type != "cpu":
            # Measures peak memory from here, without the tuning of kernels.
            torch.get_device_module(self._device.type).reset_peak_memory_stats(self._device)

    @torch.no_grad()
    def moments(self, batch: Batch) -> NDArray[np.float32]:
        interpreter = MomentsInterpreter(self._training)
        interpreter.run(*self._lowered(self._feed.inputs(batch, self._graph.inputs)))
        flat = torch.cat([*interpreter.moments, torch.zeros(0, device=self._device)])
        return cast("NDArray[np.float32]", flat.cpu().numpy())

    def assign(self, weights: Weights) -> None:
        parameters, statistics = (
            {name: array for name, array in weights.items() if name in layout.shapes}
            for layout in (self._layout, self._statistics_layout)
        )
        self._optimizer.assign(parameters)
        self._statistics_layout.write(self._statistics, statistics)
        self._cast()

    def checksum(self) -> base.PendingChecksum:
        return named_errors()(begin_checksum(self._optimizer.evaluated))

    def statistics(self) -> NDArray[np.float32]:
        return np.array(self._statistics.cpu().numpy())

    def set_statistics(self, flat: NDArray[np.float32]) -> None:
        self._statistics.copy_(torch.from_numpy(flat))

    def _take_loss(self) -> float:
        loss = self._loss.item()
        self._loss.zero_()
        return loss

    @torch.no_grad()
    def evaluate_step(self, batch: Batch) -> None:
        self._show(evaluated=True)
        inputs, targets = self._feed.inputs(batch, self._graph.inputs), self._feed.targets(batch)
        output = self._outputs(inputs, training=False)
        loss = self._loss_of(output, targets, 0.0).sum()
        parts = self._quality_of(output, targets)
        if self._metric.rows:
            self._rows.append(parts)
            parts = ()
        if self._objective.predictions:
            self._predicted.append(output.argmax(dim=1))
        self._evaluated += torch.stack([part.double() for part in (loss, *parts)])
        self._samples += batch.size
        self._feed.done()

    def _take_evaluation(self) -> list[float]:
        sums: list[float] = self._evaluated.tolist()
        self._evaluated.zero_()
        return sums

    def _joined(self, parts: Sequence[Tensor]) -> NDArray[Any]:
        return cast("NDArray[Any]", torch.cat(list(parts)).cpu().numpy())

    def weights(self) -> Weights:
        arrays = self._layout.read(self._optimizer.evaluated)
        arrays |= self._statistics_layout.read(self._statistics)
        return {name: arrays[name] for name in (*self._graph.parameters, *self._graph.statistics)}

    def optimizer_state(self) -> base.OptimizerState:
        return self._optimizer.arrays()

    def close(self) -> None:
        del self._training, self._inference, self._eager, self._modules, self._leaves
        del self._optimizer, self._hooks
        self._flat = self._statistics = torch.empty(0)
        self._low = self._gradients = None
        self._gradient_views = []
        CODE_CACHE.clear()
        release_freed_memory(self._device)
