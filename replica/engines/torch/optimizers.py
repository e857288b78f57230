"""Optimizers of the ``torch`` engine, for parameters in one flat fp32 buffer.

Their state is stored in buffers of the same layout, and is read and written like parameters.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from inspect import unwrap
from itertools import accumulate
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from aiperf_hpc.morphism.weights.weight_file import Array, Weights
from aiperf_hpc.replica.engines.base import (
    ITERATE,
    STEP,
    OptimizerState,
    Regularization,
    slots,
    step_count,
    step_state,
)
from aiperf_hpc.replica.engines.torch.flat_layout import FlatLayout

FUSED = ("cpu", "cuda")
"""Devices for which PyTorch has fused updates."""

ToDevice = Callable[..., list[Tensor]]
"""Function that copies host buffers to the device of the parameters (``device.Feed.to_device``)."""


class FlatOptimizer(torch.optim.Optimizer):
    """Base class: updates all parameters at once and clips the norm of their gradients.

    Gradients are flat tensors: one per parameter, or pieces of a buffer of the layout, each with
    one or several whole parameters.
    """

    slot_names: tuple[str, ...] = ()
    """Slots of each parameter."""
    fusible = False
    """Whether PyTorch has a fused update on the devices in ``FUSED``."""

    def __init__(self, flat: Tensor, layout: FlatLayout, regularization: Regularization) -> None:
        """Create an optimizer with an initial state.

        Args:
            flat: buffer of all parameters, which ``step`` updates.
            layout: layout of the buffer.
            regularization: hyperparameters, weight decay and penalties of the trial.
        """
        super().__init__([flat], {})
        self._flat, self._layout, self._used = flat, layout, regularization.used
        # Makes GradScaler set only ``grad_scale`` and ``found_inf``; ``step`` does the rest.
        self._step_supports_amp_scaling = self.fusible and flat.device.type in FUSED
        self._slots = {name: torch.zeros_like(flat) for name in self.slot_names}
        self._parts, *self._slot_parts = map(self._cut, (flat, *self._slots.values()))
        self._sizes = [len(part) for part in self._parts]
        numbers = {name: number for number, name in enumerate(layout.places)}
        penalties = regularization.penalties
        self._decayed = sorted(numbers[name] for name in regularization.decayed)
        self._penalized = [number for name, number in numbers.items() if penalties.get(name)]
        self._slopes = [2.0 * penalties[name] for name in numbers if penalties.get(name)]
        self._steps = 0
        self._buffers = list(self._slots.values())
        """All buffers of the state."""
        self._begin()

    def _begin(self) -> None:
        """Create the parts of the state other than the slots."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group as the overridden method does, but without importing PyTorch's compiler.

        The import needs a second, and optimizers are not compiled.
        """
        unwrap(torch.optim.Optimizer.add_param_group)(self, param_group)

    @property
    def evaluated(self) -> Tensor:
        """Flat buffer of the evaluated parameters, which are also the returned weights."""
        return self._flat

    def show(self, *, evaluated: bool) -> bool:
        """Switch the parameters' buffer to the evaluated or to the trained parameters.

        Returns:
            Whether the contents of the buffer changed.
        """
        return False

    def step(self, gradients: list[Tensor], rate: float) -> None:  # type: ignore[override]
        """Update all parameters; the gradients may be overwritten."""
        self._steps += 1
        with torch.no_grad():
            self._add_penalties(gradients)
            self._clip(gradients)
            self._update(gradients, rate)

    def _update(self, gradients: list[Tensor], rate: float) -> None:
        raise NotImplementedError

    @property
    def _loss_scale(self) -> Tensor | None:
        """Loss scale of the gradients, if ``step`` has to undo it."""
        scale: Tensor | None = getattr(self, "grad_scale", None)
        return scale

    @property
    def _kernel_options(self) -> dict[str, Any]:
        """Common options of PyTorch's kernels."""
        fused = self._step_supports_amp_scaling
        found_inf = getattr(self, "found_inf", None)
        options = {"grad_scale": self._loss_scale, "found_inf": found_inf, "maximize": False}
        return options | {"fused": fused, "foreach": not fused}

    def _add_penalties(self, gradients: list[Tensor]) -> None:
        """Add the gradients of the penalties."""
        if not self._penalized:
            return
        slopes = torch._foreach_mul(_some(self._parts, self._penalized), self._slopes)
        if self._loss_scale is not None:
            torch._foreach_mul_(slopes, self._loss_scale)
        torch._foreach_add_(_some(self._by_parameter(gradients), self._penalized), slopes)

    def _clip(self, gradients: list[Tensor]) -> None:
        """Scale gradients down to the maximum norm; the host does not wait for the norm."""
        limit = self._used.max_gradient_norm
        if limit is None:
            return
        # Excludes the gaps of the layout, because zero times NaN would remain NaN.
        parts = self._by_parameter(gradients)
        norm = torch.stack(_norms(parts)).square().sum().sqrt()
        if self._loss_scale is not None:
            norm = norm / self._loss_scale
        torch._foreach_mul_(parts, 1.0 / torch.clamp(norm / limit, min=1.0))

    def _decay(self, factor: float | Tensor) -> None:
        """Multiply the parameters with decoupled weight decay by ``factor``."""
        if self._decayed:
            torch._foreach_mul_(_some(self._parts, self._decayed), cast("float", factor))

    def _cut(self, flat: Tensor) -> list[Tensor]:
        """Return each parameter's part of a buffer."""
        return [flat[place] for place in self._layout.places.values()]

    def _is_by_parameter(self, gradients: Sequence[Tensor]) -> bool:
        """Return whether there is one gradient per parameter instead of pieces of a buffer."""
        return [len(gradient) for gradient in gradients] == self._sizes

    def _by_parameter(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return each parameter's gradient."""
        if self._is_by_parameter(gradients):
            return list(gradients)
        ends = list(accumulate(len(gradient) for gradient in gradients))
        parts = []
        for place in self._layout.places.values():
            number = bisect_right(ends, place.start)
            start = ends[number] - len(gradients[number])
            parts.append(gradients[number][place.start - start : place.stop - start])
        return parts

    def assign(self, weights: Weights) -> None:
        """Replace some parameters."""
        self._layout.write(self._flat, weights)

    def snapshot(self) -> Callable[[], None]:
        """Return a function that undoes all later steps, except for the parameters."""
        copies, steps = [(buffer, buffer.clone()) for buffer in self._buffers], self._steps

        def restore() -> None:
            for buffer, values in copies:
                buffer.copy_(values)
            self._steps = steps

        return restore

    def _step_count(self) -> int:
        return self._steps

    def arrays(self) -> dict[str, Array]:
        """Return a copy of the state."""
        arrays = {
            f"{slot}:{name}": array
            for slot, flat in self._slots.items()
            for name, array in self._layout.read(flat).items()
        }
        return arrays | step_state(self._step_count())

    def load(self, state: OptimizerState | None, to_device: ToDevice) -> None:
        """Resume from a state and the weights returned with it; start without a history if None.

        Args:
            state: arrays of the state.
            to_device: function that copies the arrays to the device of the parameters.

        Raises:
            EngineError: the state does not belong to this optimizer.
        """
        if state is None:
            return
        arrays = [slots(state, slot, self._layout.places) for slot in self._slots]
        copies = to_device(*map(self._layout.host_buffer, arrays)) if arrays else []
        for flat, values in zip(self._slots.values(), copies, strict=True):
            flat.copy_(values)
        self._steps = step_count(state)


class SGD(FlatOptimizer):
    """``m = momentum * m - rate * g``, ``w += m``; weight decay is not part of the momentum.

    PyTorch's SGD multiplies momenta by the rate of the step that applies them. Here, as in Keras,
    each gradient is multiplied by the rate of its own step. PyTorch's fused kernel computes
    ``b = momentum * b + (1 - dampening) * g``, ``w -= lr * b``. This is equal for b = -m, a
    dampening of 1 - rate and an lr of 1.
    """

    slot_names = ("momentum",)
    """Slot stored here as -m."""
    fusible = True

    def _begin(self) -> None:
        self._pieces: dict[tuple[int, ...], tuple[list[Tensor], list[Tensor]]] = {}
        """Parameters and momenta, split by sizes of gradients."""
        self._skipped = torch.zeros((), device=self._flat.device)
        """Number of steps whose gradients were not finite, so that they changed nothing."""
        self._buffers.append(self._skipped)

    def _update(self, gradients: list[Tensor], rate: float) -> None:
        momentum, decay = self._used.momentum, self._used.weight_decay
        options = self._kernel_options
        found_inf: Tensor | None = options["found_inf"]
        if found_inf is not None:
            self._skipped += found_inf
        if self._decayed:
            # A nonfinite gradient must not change anything.
            finite = 1.0 if found_inf is None else 1.0 - found_inf
            self._decay(1.0 - rate * decay * finite)
        parameters, negated = self._divided(gradients)
        sgd(
            parameters,
            gradients,
            cast("list[Tensor | None]", negated),
            weight_decay=0.0,
            momentum=momentum,
            lr=1.0 if momentum else rate,
            dampening=1.0 - rate if momentum else 0.0,
            nesterov=False,
            **options,
        )

    def _divided(self, gradients: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Return parameters and momenta in pieces of the gradients' sizes, for fewer kernels."""
        if self._is_by_parameter(gradients):
            return self._parts, self._slot_parts[0]
        sizes = tuple(len(gradient) for gradient in gradients)
        if sizes not in self._pieces:
            flats = (self._flat, self._slots["momentum"])
            parameters, negated = (list(flat.split_with_sizes(sizes)) for flat in flats)
            self._pieces[sizes] = parameters, negated
        return self._pieces[sizes]

    def _step_count(self) -> int:
        return self._steps - int(self._skipped.item())

    def arrays(self) -> dict[str, Array]:
        arrays = super().arrays()
        return {name: array if name == STEP else -array for name, array in arrays.items()}

    def load(self, state: OptimizerState | None, to_device: ToDevice) -> None:
        super().load(state, to_device)
        self._slots["momentum"].neg_()


class _Group(NamedTuple):
    """Parameters with the same weight decay, updated by one kernel call."""

    members: list[int]
    """Indices of the members among all parameters."""
    decay: float
    tensors: list[list[Tensor]]
    """Parameters, first moments, second moments and steps."""


class Adam(FlatOptimizer):
    """Adam (Kingma and Ba 2015, algorithm 1); weight decay is an L2 term of the gradient."""

    slot_names = ("first_moment", "second_moment")
    fusible = True
    kernel: Callable[..., None] = staticmethod(adam)
    """PyTorch's kernel, which is fused on the devices in ``FUSED``."""

    def _begin(self) -> None:
        device = self._flat.device if self._step_supports_amp_scaling else "cpu"
        self._counts = torch.zeros(len(self._parts), device=device)
        """Number of steps per parameter; all are equal, but PyTorch counts them separately."""
        self._buffers.append(self._counts)
        each = [self._parts, *self._slot_parts, list(self._counts.unbind())]
        others = [n for n in range(len(self._parts)) if n not in set(self._decayed)]
        self._groups = [
            _Group(members, decay, [_some(tensors, members) for tensors in each])
            for members, decay in ((self._decayed, self._used.weight_decay), (others, 0.0))
            if members
        ]

    def _update(self, gradients: list[Tensor], rate: float) -> None:
        used, parts = self._used, self._by_parameter(gradients)
        for group in self._groups:
            parameters, first_moments, second_moments, steps = group.tensors
            self.kernel(
                parameters,
                _some(parts, group.members),
                first_moments,
                second_moments,
                [],
                steps,
                amsgrad=False,
                beta1=used.beta1,
                beta2=used.beta2,
                lr=rate,
                weight_decay=group.decay,
                eps=used.epsilon,
                **self._kernel_options,
            )

    def _step_count(self) -> int:
        return int(self._counts[0].item())

    def load(self, state: OptimizerState | None, to_device: ToDevice) -> None:
        super().load(state, to_device)
        self._counts.fill_(self._steps)


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2)."""

    kernel = staticmethod(adamw)


class LAMB(FlatOptimizer):
    """LAMB (You et al. 2020, algorithm 2), with the identity as its function phi.

    The trust ratio of a parameter is the ratio of its norm to its update's norm, or 1 if one of
    them is 0.
    """

    slot_names = ("first_moment", "second_moment")

    def _update(self, gradients: list[Tensor], rate: float) -> None:
        used, parts = self._used, self._by_parameter(gradients)
        first, second = self._slot_parts
        torch._foreach_lerp_(first, parts, 1.0 - used.beta1)
        torch._foreach_mul_(second, used.beta2)
        torch._foreach_addcmul_(second, parts, parts, 1.0 - used.beta2)
        roots = torch._foreach_sqrt(second)
        torch._foreach_div_(roots, (1.0 - used.beta2**self._steps) ** 0.5)
        torch._foreach_add_(roots, used.epsilon)
        updates = torch._foreach_div(first, 1.0 - used.beta1**self._steps)
        torch._foreach_div_(updates, roots)
        if self._decayed:
            torch._foreach_add_(
                _some(updates, self._decayed),
                _some(self._parts, self._decayed),
                alpha=used.weight_decay,
            )
        of_parameters, of_updates = (torch.stack(_norms(t)) for t in (self._parts, updates))
        trusted = (of_parameters > 0.0) & (of_updates > 0.0)
        ratios = torch.where(trusted, of_parameters / of_updates, 1.0)
        torch._foreach_mul_(updates, list(ratios.unbind()))
        torch._foreach_add_(self._parts, updates, alpha=-rate)


class AveragedSGD(FlatOptimizer):
    """SGD without momentum that evaluates the mean of the parameters over the steps.

    This is the method of Polyak and Juditsky 1992, as PyTorch's ASGD with lambda 0. Averaging
    starts with the second step after ``averaging_start``; until then, the mean equals the
    parameters. The returned weights are the mean. The trained parameters, the iterates, are part of
    the state.
    """

    def _begin(self) -> None:
        self._averaged = False
        """Whether the parameters' buffer contains the average."""
        self._other = torch.zeros_like(self._flat)
        """Buffer of the other one of average and iterates."""
        self._buffers.append(self._other)

    @property
    def evaluated(self) -> Tensor:
        return self._flat if self._averaged else self._other

    def show(self, *, evaluated: bool) -> bool:
        if self._averaged is evaluated:
            return False
        values = self._flat.clone()
        self._flat.copy_(self._other)
        self._other.copy_(values)
        self._averaged = evaluated
        return True

    def assign(self, weights: Weights) -> None:
        super().assign(weights)
        self._layout.write(self._other, weights)

    def _update(self, gradients: list[Tensor], rate: float) -> None:
        self._decay(1.0 - rate * self._used.weight_decay)
        torch._foreach_add_(self._parts, self._by_parameter(gradients), alpha=-rate)
        steps = max(1, self._steps - 1 - self._used.averaging_start)
        self._other.lerp_(self._flat, 1.0 / steps)

    def snapshot(self) -> Callable[[], None]:
        restore_buffers, averaged = super().snapshot(), self._averaged

        def restore() -> None:
            restore_buffers()
            self._averaged = averaged

        return restore

    def arrays(self) -> dict[str, Array]:
        iterates = self._layout.read(self._other if self._averaged else self._flat)
        return {f"{ITERATE}:{name}": array for name, array in iterates.items()} | super().arrays()

    def load(self, state: OptimizerState | None, to_device: ToDevice) -> None:
        super().load(state, to_device)
        self._averaged = state is not None
        if state is None:
            self._other.copy_(self._flat)
        else:
            iterates = slots(state, ITERATE, self._layout.places)
            (buffer,) = to_device(self._layout.host_buffer(iterates))
            self._other.copy_(buffer)


OPTIMIZERS: dict[str, type[FlatOptimizer]] = {
    "sgd": SGD,
    "adam": Adam,
    "adamw": AdamW,
    "lamb": LAMB,
    "asgd": AveragedSGD,
}


def _some(tensors: Sequence[Tensor], members: Sequence[int]) -> list[Tensor]:
    return [tensors[number] for number in members]


def _norms(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return Euclidean norms.

    On CPUs, one thread computes them. The last bits of a sum depend on the number of threads, which
    differs between ranks with their parts of a batch, but all ranks must get equal results.
    """
    threads = torch.get_num_threads()
    if tensors[0].device.type == "cpu":
        torch.set_num_threads(1)
    try:
        return list(torch._foreach_norm(list(tensors)))
    finally:
        torch.set_num_threads(threads)
