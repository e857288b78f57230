"""Optimizers of the ``tensorflow`` engine. Updates are traced into the ``tf.function`` of a step.

The update of a parameter uses a single TensorFlow kernel if there is a suitable one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

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
from aiperf_hpc.replica.tensorflow_import import tf

Variables = Mapping[str, tf.Variable]
Gradients = Mapping[str, tf.Tensor]

_AVERAGE = "average"

_ROW = 1024
"""Elements of a row to sum at once."""


class Optimizer:
    """Base class: updates all parameters at once and clips the norm of their gradients."""

    slot_names: tuple[str, ...] = ()
    """Slots of each parameter."""

    def __init__(
        self, parameters: Variables, regularization: Regularization, state: Variables | None = None
    ) -> None:
        """Create an optimizer with new or existing variables.

        Args:
            parameters: variables that steps update.
            regularization: hyperparameters, weight decay and penalties of the trial.
            state: mapping with the ``variables`` of an optimizer of the same parameters, or None
                to create new ones.
        """
        self._parameters = parameters
        self._used, self._decayed, self._penalties = regularization
        self.variables: Variables = (
            {name: tf.Variable(first()) for name, first in self._first_values().items()}
            if state is None
            else state
        )
        """The state without the parameters, by the names in an ``OptimizerState``."""

    def _first_values(self) -> dict[str, Callable[[], tf.Tensor | tf.Variable]]:
        """Return functions that create the initial values of a state."""
        first: dict[str, Callable[[], tf.Tensor]] = {
            f"{slot}:{name}": partial(tf.zeros, parameter.shape)
            for slot in self.slot_names
            for name, parameter in self._parameters.items()
        }
        return first | {STEP: partial(tf.zeros, (), tf.int64)}

    @staticmethod
    def evaluated(name: str) -> str:
        """Return the name of the variable with a parameter's evaluated value."""
        return name

    @property
    def _steps(self) -> tf.Variable:
        return self.variables[STEP]

    def _power(self, base: float) -> tf.Tensor:
        """Return ``base`` to the power of the step number, in float64 for subtraction from 1."""
        return tf.pow(tf.constant(base, tf.float64), tf.cast(self._steps, tf.float64))

    def _slot(self, slot: str) -> Variables:
        """Return a slot of each parameter."""
        return {name: self.variables[f"{slot}:{name}"] for name in self._parameters}

    def step(self, gradients: Gradients, rate: tf.Tensor) -> None:
        """Update all parameters."""
        self._steps.assign_add(1)
        penalized = {
            name: gradients[name] + 2.0 * factor * self._parameters[name]
            for name, factor in self._penalties.items()
        }
        self._update(self._clipped({**gradients, **penalized}), rate)

    def _update(self, gradients: Gradients, rate: tf.Tensor) -> None:
        raise NotImplementedError

    def _clipped(self, gradients: Gradients) -> Gradients:
        """Return gradients scaled down to the maximum global norm."""
        limit = self._used.max_gradient_norm
        if limit is None:
            return gradients
        norm = tf.sqrt(tf.add_n([_sum_of_squares(g) for g in gradients.values()]))
        factor = 1.0 / tf.maximum(norm / limit, 1.0)
        return {name: gradient * factor for name, gradient in gradients.items()}

    def _decay(self, rate: tf.Tensor) -> None:
        """Apply decoupled weight decay to the parameters."""
        if self._decayed:
            factor = 1.0 - rate * self._used.weight_decay
            for name in self._decayed:
                variable = self._parameters[name]
                variable.assign(variable * factor)

    def assign(self, weights: Weights) -> None:
        """Replace some parameters."""
        for name, array in weights.items():
            self._parameters[name].assign(array)

    def arrays(self) -> dict[str, Array]:
        """Return a copy of the state."""
        arrays = {
            f"{slot}:{name}": np.array(variable.numpy(), np.float32)
            for slot in self.slot_names
            for name, variable in self._slot(slot).items()
        }
        return arrays | step_state(int(self._steps.numpy()))

    def load(self, state: OptimizerState | None) -> None:
        """Resume from a state and the weights returned with it; start without a history if None.

        Raises:
            EngineError: the state does not belong to this optimizer.
        """
        for slot in self.slot_names:
            arrays = None if state is None else slots(state, slot, self._parameters)
            for name, variable in self._slot(slot).items():
                variable.assign(tf.zeros(variable.shape) if arrays is None else arrays[name])
        self._steps.assign(0 if state is None else step_count(state))


class SGD(Optimizer):
    """``m = momentum * m - rate * g``, ``w += m`` in one kernel; weight decay is applied before."""

    slot_names = ("momentum",)

    def _update(self, gradients: Gradients, rate: tf.Tensor) -> None:
        self._decay(rate)
        momenta, momentum = self._slot("momentum"), tf.constant(self._used.momentum)
        for name, gradient in gradients.items():
            tf.raw_ops.ResourceApplyKerasMomentum(
                var=self._parameters[name].handle,
                accum=momenta[name].handle,
                lr=rate,
                grad=gradient,
                momentum=momentum,
            )


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015, algorithm 1); weight decay is an L2 term of the gradient.

    TensorFlow's kernel implements the variant of the paper's section 2, which adds epsilon before
    the bias correction of the second moment. The algorithm, as in PyTorch, adds it afterwards. The
    kernel gets an adapted rate and epsilon here that make it equal to the algorithm.
    """

    slot_names = ("first_moment", "second_moment")
    decoupled = False
    """Whether weight decay shrinks the parameters instead of adding to their gradients."""

    def _update(self, gradients: Gradients, rate: tf.Tensor) -> None:
        used = self._used
        root = tf.sqrt(1.0 - self._power(used.beta2))
        corrected = tf.cast(rate, tf.float64) * root / (1.0 - self._power(used.beta1))
        corrected, epsilon = (tf.cast(x, tf.float32) for x in (corrected, used.epsilon * root))
        first, second = (self._slot(slot) for slot in self.slot_names)
        if self.decoupled:
            self._decay(rate)
        for name, gradient in gradients.items():
            tf.raw_ops.ResourceApplyAdam(
                var=self._parameters[name].handle,
                m=first[name].handle,
                v=second[name].handle,
                beta1_power=0.0,
                beta2_power=0.0,
                lr=corrected,
                beta1=used.beta1,
                beta2=used.beta2,
                epsilon=epsilon,
                grad=self._with_decay(name, gradient),
            )

    def _with_decay(self, name: str, gradient: tf.Tensor) -> tf.Tensor:
        if self.decoupled or name not in self._decayed:
            return gradient
        return gradient + self._used.weight_decay * self._parameters[name]


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2)."""

    decoupled = True


class LAMB(Optimizer):
    """LAMB (You et al. 2020, algorithm 2), with the identity as its function phi.

    The trust ratio of a parameter is the ratio of its norm to its update's norm, or 1 if one of
    them is 0.
    """

    slot_names = ("first_moment", "second_moment")

    def _update(self, gradients: Gradients, rate: tf.Tensor) -> None:
        used = self._used
        first_bias = tf.cast(1.0 - self._power(used.beta1), tf.float32)
        second_bias = tf.cast(tf.sqrt(1.0 - self._power(used.beta2)), tf.float32)
        firsts, seconds = (self._slot(slot) for slot in self.slot_names)
        for name, gradient in gradients.items():
            parameter, first, second = self._parameters[name], firsts[name], seconds[name]
            first.assign_add((1.0 - used.beta1) * (gradient - first))
            second.assign(used.beta2 * second + (1.0 - used.beta2) * gradient * gradient)
            update = first / first_bias / (tf.sqrt(second) / second_bias + used.epsilon)
            if name in self._decayed:
                update += used.weight_decay * parameter
            of_parameter, of_update = (tf.sqrt(_sum_of_squares(t)) for t in (parameter, update))
            trusted = tf.logical_and(of_parameter > 0.0, of_update > 0.0)
            ratio = tf.where(trusted, of_parameter / of_update, 1.0)
            parameter.assign_sub(rate * ratio * update)


class AveragedSGD(Optimizer):
    """SGD without momentum that evaluates the mean of the parameters over the steps.

    This is the method of Polyak and Juditsky 1992, as PyTorch's ASGD with lambda 0. Averaging
    starts with the second step after ``averaging_start``; until then, the mean equals the
    parameters. The returned weights are the mean. The trained parameters, the iterates, are part of
    the state.
    """

    def _first_values(self) -> dict[str, Callable[[], tf.Tensor | tf.Variable]]:
        averages = {
            self.evaluated(name): partial(tf.identity, parameter)
            for name, parameter in self._parameters.items()
        }
        return super()._first_values() | averages

    @staticmethod
    def evaluated(name: str) -> str:
        return f"{_AVERAGE}:{name}"

    def _update(self, gradients: Gradients, rate: tf.Tensor) -> None:
        averaged = tf.maximum(self._steps - 1 - self._used.averaging_start, 1)
        share = 1.0 / tf.cast(averaged, tf.float32)
        self._decay(rate)
        averages = self._slot(_AVERAGE)
        for name, gradient in gradients.items():
            parameter, average = self._parameters[name], averages[name]
            parameter.assign_sub(rate * gradient)
            # The mean of a single value is exactly that value.
            moved = average + share * (parameter - average)
            average.assign(tf.where(averaged > 1, moved, parameter))

    def assign(self, weights: Weights) -> None:
        super().assign(weights)
        averages = self._slot(_AVERAGE)
        for name, array in weights.items():
            averages[name].assign(array)

    def arrays(self) -> dict[str, Array]:
        iterates = {
            f"{ITERATE}:{name}": np.array(variable.numpy(), np.float32)
            for name, variable in self._parameters.items()
        }
        return iterates | super().arrays()

    def load(self, state: OptimizerState | None) -> None:
        super().load(state)
        iterates = None if state is None else slots(state, ITERATE, self._parameters)
        averages = self._slot(_AVERAGE)
        for name, parameter in self._parameters.items():
            averages[name].assign(parameter)
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
    """Return the sum of squares: first by rows, then the row sums by rows, and so on.

    One thread sums each row. The last bits of a sum depend on its division among threads, but all
    ranks must get equal results with any number of threads.
    """
    sums = tf.reshape(tf.square(tensor), [-1])
    while (length := sums.shape[0]) > 1:
        row = min(length, _ROW)
        padded = tf.pad(sums, [[0, -length % row]])
        sums = tf.reduce_sum(tf.reshape(padded, [-1, row]), axis=1)
    return sums[0]
