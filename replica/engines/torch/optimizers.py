"""Optimizers of the ``torch`` engine, over parameters that lie in one flat buffer in fp32.

Their state lies in buffers of the same layout, so that it is read and written as parameters are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from inspect import unwrap
from itertools import accumulate
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from aiperf_hpc.morphism.weights.checkpoint import Array, Weights
from aiperf_hpc.replica.engines.base import (
    ITERATE,
    OptimizerState,
    slots,
    step_count,
    step_state,
)
from aiperf_hpc.trial import Hyperparameters

FUSED = ("cpu", "cuda")
"""The devices that PyTorch has an update for in one kernel."""


class Layout(Protocol):
    """Where each parameter lies in a flat buffer, in order; zeros may be between two."""

    places: dict[str, slice]

    def write(self, flat: Tensor, arrays: Weights) -> None:
        """Put arrays into a buffer."""
        ...

    def host_buffer(self, arrays: Weights) -> Tensor:
        """Return a buffer of all arrays in the host's memory."""
        ...

    def read(self, flat: Tensor) -> dict[str, Array]:
        """Return copies of all arrays of a buffer."""
        ...


Bring = Callable[..., list[Tensor]]
"""What returns tensors of some buffers where the parameters are: ``device.Feed.brought``."""


class FlatOptimizer(torch.optim.Optimizer):
    """Base: updates all parameters at once, and keeps the norm of their gradients in bounds.

    Gradients come as flat tensors: one for each parameter, or pieces of a buffer of its layout,
    each of one or several whole parameters.
    """

    slot_names: tuple[str, ...] = ()
    """What there is of each parameter besides itself."""

    def __init__(
        self, flat: Tensor, layout: Layout, decayed: Collection[str], used: Hyperparameters
    ) -> None:
        """Begin without a history.

        Args:
            flat: all parameters; ``step`` changes them.
            layout: where each of them lies in it.
            decayed: those that weight decay applies to.
            used: the trial's hyperparameters.
        """
        super().__init__([flat], {})
        self._flat = flat
        self._layout = layout
        self._used = used
        self._fused = flat.device.type in FUSED
        self._slots = {name: torch.zeros_like(flat) for name in self.slot_names}
        self._parts = self._cut(flat)
        self._sizes = [len(part) for part in self._parts]
        self._decayed = [number for number, name in enumerate(layout.places) if name in decayed]
        self._penalised: list[int] = []
        self._slopes: list[float] = []

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group as PyTorch does, but without its compiler, which that method imports.

        It does so to keep itself out of what is compiled, as which no optimizer is built here; the
        import takes a second.
        """
        unwrap(torch.optim.Optimizer.add_param_group)(self, param_group)

    @property
    def evaluated(self) -> Tensor:
        """What is evaluated and handed out as the parameters, flat."""
        return self._flat

    def show(self, *, evaluated: bool) -> bool:
        """Have the parameters' memory hold what is evaluated, or what is trained.

        Returns:
            Whether that changed it.
        """
        del evaluated
        return False

    def penalise(self, penalties: Mapping[str, float]) -> None:
        """Minimize, from now on, these times the sums of the parameters' squares too."""
        chosen = [name for name in self._layout.places if penalties.get(name)]
        places = {name: number for number, name in enumerate(self._layout.places)}
        self._penalised = [places[name] for name in chosen]
        self._slopes = [2.0 * penalties[name] for name in chosen]

    def step(self, gradients: list[Tensor], rate: float) -> None:  # type: ignore[override]
        """Update all parameters; the gradients' memory may be changed."""
        with torch.no_grad():
            self._add_penalties(gradients)
            self._clip(gradients)
            self._update(gradients, rate)

    def _update(self, gradients: list[Tensor], rate: float) -> None:
        raise NotImplementedError

    def _add_penalties(self, gradients: list[Tensor]) -> None:
        """Add the gradients of what is penalised."""
        if not self._penalised:
            return
        slopes = torch._foreach_mul(_some(self._parts, self._penalised), self._slopes)
        scale: Tensor | None = getattr(self, "grad_scale", None)
        if scale is not None:  # They are those of the loss times this.
            torch._foreach_mul_(slopes, scale)
        torch._foreach_add_(_some(self._by_parameter(gradients), self._penalised), slopes)

    def _clip(self, gradients: list[Tensor]) -> None:
        """Scale gradients down to the greatest norm; the host does not wait for what it is."""
        limit = self._used.max_gradient_norm
        if limit is None:
            return
        # Not what lies between them: zeros times what is no number would stay that.
        parts = self._by_parameter(gradients)
        norm = torch.stack(_norms(parts)).square().sum().sqrt()
        scale: Tensor | None = getattr(self, "grad_scale", None)
        if scale is not None:  # They are those of the loss times this.
            norm = norm / scale
        torch._foreach_mul_(parts, 1.0 / torch.clamp(norm / limit, min=1.0))

    def _cut(self, flat: Tensor) -> list[Tensor]:
        """Return each parameter's part of a buffer."""
        return [flat[place] for place in self._layout.places.values()]

    def _is_of_each(self, gradients: Sequence[Tensor]) -> bool:
        """Return whether gradients are one for each parameter, and not pieces of a buffer."""
        return [len(gradient) for gradient in gradients] == self._sizes

    def _by_parameter(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return each parameter's gradient."""
        if self._is_of_each(gradients):
            return list(gradients)
        ends = list(accumulate(len(gradient) for gradient in gradients))
        found = []
        for place in self._layout.places.values():
            number = bisect_right(ends, place.start)
            begin = ends[number] - len(gradients[number])
            found.append(gradients[number][place.start - begin : place.stop - begin])
        return found

    def assign(self, weights: Weights) -> None:
        """Replace some parameters."""
        self._layout.write(self._flat, weights)

    def snapshot(self) -> Callable[[], None]:
        """Return what undoes, but for the parameters, all steps from now on."""
        kept = [(tensor, tensor.clone()) for tensor in self._slots.values()]

        def restore() -> None:
            for tensor, values in kept:
                tensor.copy_(values)

        return restore

    def arrays(self) -> dict[str, Array]:
        """Return a copy of the state."""
        return {
            f"{slot}:{name}": array
            for slot, flat in self._slots.items()
            for name, array in self._layout.read(flat).items()
        }

    def load(self, state: OptimizerState | None, bring: Bring) -> None:
        """Go on from a state, the parameters being what was handed out with it; None: begin.

        Args:
            state: the arrays of the state.
            bring: brings them to where the parameters are.

        Raises:
            EngineError: it is not a state of this optimizer.
        """
        if state is not None and self._slots:
            of_slots = [slots(state, slot, self._layout.places) for slot in self._slots]
            brought = bring(*map(self._layout.host_buffer, of_slots))
            for flat, values in zip(self._slots.values(), brought, strict=True):
                flat.copy_(values)


class SGD(FlatOptimizer):
    """``m = momentum * m - rate * g``, ``w += m``; weight decay outside it.

    PyTorch's own multiplies its momenta by the rate of the step in which they are used, ours by
    that of the step they come from, as Keras does. PyTorch's fused kernel computes
    ``b = momentum * b + (1 - dampening) * g``, ``w -= lr * b``: that is ours for b = -m, a
    dampening of 1 - rate and an lr of 1.
    """

    slot_names = ("momentum",)
    """The slot that is kept here as -m."""

    def __init__(
        self, flat: Tensor, layout: Layout, decayed: Collection[str], used: Hyperparameters
    ) -> None:
        super().__init__(flat, layout, decayed, used)
        # Tells GradScaler to set ``grad_scale`` and ``found_inf``, and leave the rest to ``step``.
        self._step_supports_amp_scaling = self._fused
        self._momenta = self._cut(self._slots["momentum"])
        self._pieces: dict[tuple[int, ...], tuple[list[Tensor], list[Tensor]]] = {}
        """Parameters and momenta, divided as gradients of these sizes."""

    def _update(self, gradients: list[Tensor], rate: float) -> None:
        momentum, decay = self._used.momentum, self._used.weight_decay
        found_inf: Tensor | None = getattr(self, "found_inf", None)
        if decay:
            kept: Any = 1.0 - rate * decay
            if found_inf is not None:  # Then nothing may change.
                kept = 1.0 - rate * decay * (1.0 - found_inf)
            torch._foreach_mul_(_some(self._parts, self._decayed), kept)
        parameters, negated = self._divided(gradients)
        sgd(
            parameters,
            gradients,
            cast("list[Tensor | None]", negated),
            fused=self._fused,
            foreach=not self._fused,
            grad_scale=getattr(self, "grad_scale", None),
            found_inf=found_inf,
            weight_decay=0.0,
            momentum=momentum,
            lr=1.0 if momentum else rate,
            dampening=1.0 - rate if momentum else 0.0,
            nesterov=False,
            maximize=False,
        )

    def _divided(self, gradients: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Return parameters and momenta in as large pieces as the gradients, for fewer kernels."""
        if self._is_of_each(gradients):
            return self._parts, self._momenta
        sizes = tuple(len(gradient) for gradient in gradients)
        if sizes not in self._pieces:
            flats = (self._flat, self._slots["momentum"])
            parameters, negated = (list(flat.split_with_sizes(sizes)) for flat in flats)
            self._pieces[sizes] = parameters, negated
        return self._pieces[sizes]

    def arrays(self) -> dict[str, Array]:
        return {name: -array for name, array in super().arrays().items()}

    def load(self, state: OptimizerState | None, bring: Bring) -> None:
        super().load(state, bring)
        self._slots["momentum"].neg_()


class _Group(NamedTuple):
    """Parameters that one call of a kernel updates, all with the same weight decay."""

    members: list[int]
    """The members' places among all parameters."""
    decay: float
    parameters: list[Tensor]
    first_moments: list[Tensor]
    second_moments: list[Tensor]
    steps: list[Tensor]


class Adam(FlatOptimizer):
    """Adam (Kingma and Ba 2015, algorithm 1); weight decay is an L2 term of the gradient."""

    slot_names = ("first_moment", "second_moment")
    kernel: Callable[..., None] = staticmethod(adam)
    """PyTorch's kernel, fused where the device has it so."""

    def __init__(
        self, flat: Tensor, layout: Layout, decayed: Collection[str], used: Hyperparameters
    ) -> None:
        super().__init__(flat, layout, decayed, used)
        self._step_supports_amp_scaling = self._fused
        device = flat.device if self._fused else "cpu"
        self._counts = torch.zeros(len(self._parts), device=device)
        """The steps of each parameter: all the same, but PyTorch counts them one by one."""
        steps = list(self._counts.unbind())
        first, second = (self._cut(slot) for slot in self._slots.values())
        others = [n for n in range(len(self._parts)) if n not in set(self._decayed)]
        self._groups = [
            _Group(
                members, decay, *(_some(t, members) for t in (self._parts, first, second, steps))
            )
            for members, decay in ((self._decayed, used.weight_decay), (others, 0.0))
            if members
        ]

    def _update(self, gradients: list[Tensor], rate: float) -> None:
        used, parts = self._used, self._by_parameter(gradients)
        for group in self._groups:
            self.kernel(
                group.parameters,
                _some(parts, group.members),
                group.first_moments,
                group.second_moments,
                [],
                group.steps,
                fused=self._fused,
                foreach=not self._fused,
                grad_scale=getattr(self, "grad_scale", None),
                found_inf=getattr(self, "found_inf", None),
                amsgrad=False,
                beta1=used.beta1,
                beta2=used.beta2,
                lr=rate,
                weight_decay=group.decay,
                eps=used.epsilon,
                maximize=False,
            )

    def snapshot(self) -> Callable[[], None]:
        restore_slots, counts = super().snapshot(), self._counts.clone()

        def restore() -> None:
            restore_slots()
            self._counts.copy_(counts)

        return restore

    def arrays(self) -> dict[str, Array]:
        return super().arrays() | step_state(int(self._counts[0].item()))

    def load(self, state: OptimizerState | None, bring: Bring) -> None:
        super().load(state, bring)
        if state is not None:
            self._counts.fill_(step_count(state))


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2)."""

    kernel = staticmethod(adamw)


class _Counting(FlatOptimizer):
    """Base of those that count their steps on the host: GradScaler skips what is not finite."""

    _steps = 0

    def step(self, gradients: list[Tensor], rate: float) -> None:  # type: ignore[override]
        self._steps += 1
        super().step(gradients, rate)

    def snapshot(self) -> Callable[[], None]:
        restore_slots, steps = super().snapshot(), self._steps

        def restore() -> None:
            restore_slots()
            self._steps = steps

        return restore

    def arrays(self) -> dict[str, Array]:
        return super().arrays() | step_state(self._steps)

    def load(self, state: OptimizerState | None, bring: Bring) -> None:
        super().load(state, bring)
        if state is not None:
            self._steps = step_count(state)


class LAMB(_Counting):
    """LAMB (You et al. 2020, algorithm 2), with the ratio of norms itself for its function phi.

    Each parameter has a trust ratio, of its norm to its update's; it is 1 where one of them is 0.
    """

    slot_names = ("first_moment", "second_moment")

    def __init__(
        self, flat: Tensor, layout: Layout, decayed: Collection[str], used: Hyperparameters
    ) -> None:
        super().__init__(flat, layout, decayed, used)
        self._first, self._second = (self._cut(slot) for slot in self._slots.values())

    def _update(self, gradients: list[Tensor], rate: float) -> None:
        used, parts = self._used, self._by_parameter(gradients)
        torch._foreach_lerp_(self._first, parts, 1.0 - used.beta1)
        torch._foreach_mul_(self._second, used.beta2)
        torch._foreach_addcmul_(self._second, parts, parts, 1.0 - used.beta2)
        roots = torch._foreach_sqrt(self._second)
        torch._foreach_div_(roots, (1.0 - used.beta2**self._steps) ** 0.5)
        torch._foreach_add_(roots, used.epsilon)
        updates = torch._foreach_div(self._first, 1.0 - used.beta1**self._steps)
        torch._foreach_div_(updates, roots)
        if used.weight_decay:
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


class AveragedSGD(_Counting):
    """SGD without momentum, of which the mean of the parameters over the steps is evaluated.

    Polyak and Juditsky 1992, as PyTorch's ASGD with its lambda 0: the mean begins with the second
    step after ``averaging_start``, and until then is the parameters themselves. It is what is
    handed out; the parameters that are trained, the iterates, are part of the state.
    """

    def __init__(
        self, flat: Tensor, layout: Layout, decayed: Collection[str], used: Hyperparameters
    ) -> None:
        super().__init__(flat, layout, decayed, used)
        self._averaged = False
        """Whether the parameters' memory holds the average."""
        self._other = torch.zeros_like(flat)
        """The buffer of whichever of average and iterates that does not hold."""

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
        parts, decay = self._by_parameter(gradients), self._used.weight_decay
        if decay:
            torch._foreach_mul_(_some(self._parts, self._decayed), 1 - rate * decay)
        torch._foreach_add_(self._parts, parts, alpha=-rate)
        steps = max(1, self._steps - 1 - self._used.averaging_start)
        self._other.lerp_(self._flat, 1.0 / steps)

    def snapshot(self) -> Callable[[], None]:
        restore_steps, other, averaged = super().snapshot(), self._other.clone(), self._averaged

        def restore() -> None:
            restore_steps()
            self._other.copy_(other)
            self._averaged = averaged

        return restore

    def arrays(self) -> dict[str, Array]:
        iterates = self._layout.read(self._other if self._averaged else self._flat)
        named = {f"{ITERATE}:{name}": array for name, array in iterates.items()}
        return named | super().arrays()

    def load(self, state: OptimizerState | None, bring: Bring) -> None:
        super().load(state, bring)
        self._averaged = state is not None
        if state is None:
            self._other.copy_(self._flat)
        else:
            iterates = slots(state, ITERATE, self._layout.places)
            (brought,) = bring(self._layout.host_buffer(iterates))
            self._other.copy_(brought)


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

    On CPUs by one thread: by how many a sum is divided decides its last bits, in which all ranks
    must agree, and they compute on as many as their parts of a batch are worth.
    """
    threads = torch.get_num_threads()
    if tensors[0].device.type == "cpu":
        torch.set_num_threads(1)
    try:
        return list(torch._foreach_norm(list(tensors)))
    finally:
        torch.set_num_threads(threads)
