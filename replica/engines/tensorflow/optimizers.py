"""Optimizers of the ``tensorflow`` engine. An update is traced into the ``tf.function`` of a step.

What a step does to a parameter is one kernel of TensorFlow's where it has one that computes it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from aiperf_hpc.morphism.weights.checkpoint import Array, Weights
from aiperf_hpc.replica.engines.base import (
    ITERATE,
    OptimizerState,
    slots,
    step_count,
    step_state,
)
from aiperf_hpc.replica.tensorflow_import import tf
from aiperf_hpc.trial import Hyperparameters

Variables = Mapping[str, tf.Variable]
Gradients = Mapping[str, tf.Tensor]

_ROW = 1024
"""Numbers that are added up before their sums are."""


class Optimizer:
    """Base: updates all parameters at once, and keeps the norm of their gradients in bounds."""

    slot_names: tuple[str, ...] = ()
    """What there is of each parameter besides itself."""

    def __init__(
        self, parameters: Variables, decayed: Collection[str], used: Hyperparameters
    ) -> None:
        """Begin without a history.

        Args:
            parameters: what steps change.
            decayed: those that weight decay applies to.
            used: the trial's hyperparameters.
        """
        self._parameters = parameters
        self._decayed = frozenset(decayed) if used.weight_decay else frozenset()
        self._used = used
        self._penalties: Mapping[str, float] = {}
        self._slots = {
            slot: {name: tf.Variable(tf.zeros(v.shape)) for name, v in parameters.items()}
            for slot in self.slot_names
        }

    @property
    def evaluated(self) -> Variables:
        """What is evaluated and handed out as the parameters."""
        return self._parameters

    def penalise(self, penalties: Mapping[str, float]) -> None:
        """Minimize these times the sums of parameters' squares too; before any step is traced."""
        self._penalties = penalties

    def step(self, gradients: Gradients, rate: tf.Tensor) -> None:
        """Update all parameters."""
        penalised = {
            name: gradients[name] + 2.0 * factor * self._parameters[name]
            for name, factor in self._penalties.items()
        }
        self._update(self._clipped({**gradients, **penalised}), rate)

    def _update(self, gradients: Gradients, rate: tf.Tensor) -> None:
        raise NotImplementedError

    def _clipped(self, gradients: Gradients) -> Gradients:
        """Return gradients scaled down to the greatest norm of all of them together."""
        limit = self._used.max_gradient_norm
        if limit is None:
            return gradients
        norm = tf.sqrt(tf.add_n([_sum_of_squares(g) for g in gradients.values()]))
        factor = 1.0 / tf.maximum(norm / limit, 1.0)
        return {name: gradient * factor for name, gradient in gradients.items()}

    def _decay(self, name: str, rate: tf.Tensor) -> None:
        """Shrink a parameter by decoupled weight decay."""
        if name in self._decayed:
            variable = self._parameters[name]
            variable.assign(variable * (1.0 - rate * self._used.weight_decay))

    def assign(self, weights: Weights) -> None:
        """Replace some parameters."""
        for name, array in weights.items():
            self._parameters[name].assign(array)

    def arrays(self) -> dict[str, Array]:
        """Return a copy of the state."""
        return {
            f"{slot}:{name}": np.array(variable.numpy(), np.float32)
            for slot, variables in self._slots.items()
            for name, variable in variables.items()
        }

    def load(self, state: OptimizerState | None) -> None:
        """Go on from a state, the parameters being what was handed out with it; None: begin.

        Raises:
            EngineError: it is not a state of this optimizer.
        """
        for slot, variables in self._slots.items():
            found = None if state is None else slots(state, slot, self._parameters)
            for name, variable in variables.items():
                variable.assign(tf.zeros(variable.shape) if found is None else found[name])


class SGD(Optimizer):
    """``m = momentum * m - rate * g``, ``w += m``, in one kernel; weight decay outside it."""

    slot_names = ("momentum",)

    def _update(self, gradients: Gradients, rate: tf.Tensor) -> None:
        for name, gradient in gradients.items():
            self._decay(name, rate)
            tf.raw_ops.ResourceApplyKerasMomentum(
                var=self._parameters[name].handle,
                accum=self._slots["momentum"][name].handle,
                lr=rate,
                grad=gradient,
                momentum=self._used.momentum,
            )


class _Counting(Optimizer):
    """Base of those that count their steps."""

    def __init__(
        self, parameters: Variables, decayed: Collection[str], used: Hyperparameters
    ) -> None:
        super().__init__(parameters, decayed, used)
        self._steps = tf.Variable(0, dtype=tf.int64)

    def step(self, gradients: Gradients, rate: tf.Tensor) -> None:
        self._steps.assign_add(1)
        super().step(gradients, rate)

    def _kept(self, share: float) -> tf.Tensor:
        """Return ``share`` to the power of the steps, in float64: it is to be taken from 1."""
        return tf.pow(tf.constant(share, tf.float64), tf.cast(self._steps, tf.float64))

    def arrays(self) -> dict[str, Array]:
        return super().arrays() | step_state(int(self._steps.numpy()))

    def load(self, state: OptimizerState | None) -> None:
        super().load(state)
        self._steps.assign(0 if state is None else step_count(state))


class Adam(_Counting):
    """Adam (Kingma and Ba 2015, algorithm 1); weight decay is an L2 term of the gradient.

    TensorFlow's kernel is the paper's section 2, which adds epsilon before the second moment's
    bias is corrected; the algorithm, as PyTorch has it, adds it afterwards. The rate and epsilon
    that it is given here make it the algorithm.
    """

    slot_names = ("first_moment", "second_moment")

    def _update(self, gradients: Gradients, rate: tf.Tensor) -> None:
        used = self._used
        root = tf.sqrt(1.0 - self._kept(used.beta2))
        corrected = tf.cast(rate, tf.float64) * root / (1.0 - self._kept(used.beta1))
        corrected, epsilon = (tf.cast(x, tf.float32) for x in (corrected, used.epsilon * root))
        for name, gradient in gradients.items():
            tf.raw_ops.ResourceApplyAdam(
                var=self._parameters[name].handle,
                m=self._slots["first_moment"][name].handle,
                v=self._slots["second_moment"][name].handle,
                beta1_power=0.0,
                beta2_power=0.0,
                lr=corrected,
                beta1=used.beta1,
                beta2=used.beta2,
                epsilon=epsilon,
                grad=self._with_decay(name, gradient, rate),
            )

    def _with_decay(self, name: str, gradient: tf.Tensor, rate: tf.Tensor) -> tf.Tensor:
        del rate
        if name not in self._decayed:
            return gradient
        return gradient + self._used.weight_decay * self._parameters[name]


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2)."""

    def _with_decay(self, name: str, gradient: tf.Tensor, rate: tf.Tensor) -> tf.Tensor:
        self._decay(name, rate)
        return gradient


class LAMB(_Counting):
    """LAMB (You et al. 2020, algorithm 2), with the ratio of norms itself for its function phi.

    Each parameter has a trust ratio, of its norm to its update's; it is 1 where one of them is 0.
    """

    slot_names = ("first_moment", "second_moment")

    def _update(self, gradients: Gradients, rate: tf.Tensor) -> None:
        used = self._used
        first_bias = tf.cast(1.0 - self._kept(used.beta1), tf.float32)
        second_bias = tf.cast(tf.sqrt(1.0 - self._kept(used.beta2)), tf.float32)
        for name, gradient in gradients.items():
            parameter = self._parameters[name]
            first, second = (self._slots[slot][name] for slot in self.slot_names)
            first.assign_add((1.0 - used.beta1) * (gradient - first))
            second.assign(used.beta2 * second + (1.0 - used.beta2) * gradient * gradient)
            update = first / first_bias / (tf.sqrt(second) / second_bias + used.epsilon)
            if name in self._decayed:
                update += used.weight_decay * parameter
            of_parameter, of_update = (tf.sqrt(_sum_of_squares(t)) for t in (parameter, update))
            trusted = tf.logical_and(of_parameter > 0.0, of_update > 0.0)
            ratio = tf.where(trusted, of_parameter / of_update, 1.0)
            parameter.assign_sub(rate * ratio * update)


class AveragedSGD(_Counting):
    """SGD without momentum, of which the mean of the parameters over the steps is evaluated.

    Polyak and Juditsky 1992, as PyTorch's ASGD with its lambda 0: the mean begins with the second
    step after ``averaging_start``, and until then is the parameters themselves. It is what is
    handed out; the parameters that are trained, the iterates, are part of the state.
    """

    def __init__(
        self, parameters: Variables, decayed: Collection[str], used: Hyperparameters
    ) -> None:
        super().__init__(parameters, decayed, used)
        self._averages = {name: tf.Variable(v) for name, v in parameters.items()}

    @property
    def evaluated(self) -> Variables:
        return self._averages

    def _update(self, gradients: Gradients, rate: tf.Tensor) -> None:
        averaged = tf.maximum(self._steps - 1 - self._used.averaging_start, 1)
        share = 1.0 / tf.cast(averaged, tf.float32)
        for name, gradient in gradients.items():
            self._decay(name, rate)
            parameter, average = self._parameters[name], self._averages[name]
            parameter.assign_sub(rate * gradient)
            # The mean of one is itself, to the last bit.
            moved = average + share * (parameter - average)
            average.assign(tf.where(averaged > 1, moved, parameter))

    def assign(self, weights: Weights) -> None:
        super().assign(weights)
        for name, array in weights.items():
            self._averages[name].assign(array)

    def arrays(self) -> dict[str, Array]:
        iterates = {
            f"{ITERATE}:{name}": np.array(variable.numpy(), np.float32)
            for name, variable in self._parameters.items()
        }
        return iterates | super().arrays()

    def load(self, state: OptimizerState | None) -> None:
        super().load(state)
        iterates = None if state is None else slots(state, ITERATE, self._parameters)
        for name, parameter in self._parameters.items():
            self._averages[name].assign(parameter)
            if iterates is not None:
                parameter.assign(iterates[name])


OPTIMIZERS: dict[str, type[Optimizer]] = {
    "sgd": SGD,
    "adam": Adam,
    "adamw": AdamW,
    "lamb": LAMB,
    "asgd": AveragedSGD,
}


def _sum_of_squares(tensor: tf.Tensor | tf.Variable) -> tf.Tensor:
    """Return the sum of squares, by rows, then their sums by rows, and so on.

    Each row is added up by one thread: by how many threads a sum is divided decides its last
    bits, in which all ranks must agree, whose threads may be more or fewer.
    """
    found = tf.reshape(tf.square(tensor), [-1])
    while (length := found.shape[0]) > 1:
        row = min(length, _ROW)
        padded = tf.pad(found, [[0, -length % row]])
        found = tf.reduce_sum(tf.reshape(padded, [-1, row]), axis=1)
    return found[0]
