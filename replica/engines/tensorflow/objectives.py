"""Losses and metrics of the ``tensorflow`` engine, by their names in an objective.

A loss is a function of the network's output and a batch's targets that returns the loss of each
sample, (samples,). Training minimizes the mean. A metric returns the parts of its ``QualityMetric``
in order: sums over the batch, (), or rows, (samples,).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from aiperf_hpc.objective import Objective
from aiperf_hpc.replica.tensorflow_import import tf

Targets = Mapping[str, tf.Tensor]


def softmax_cross_entropy(output: tf.Tensor, targets: Targets, smoothing: float) -> tf.Tensor:
    """Return -log of the label's softmax; (samples, classes) and labels (samples,).

    Label smoothing spreads a fraction of the target over all classes (Szegedy et al. 2016,
    section 7).
    """
    if smoothing == 0.0:
        return tf.nn.sparse_softmax_cross_entropy_with_logits(targets["label"], output)
    classes = output.shape[-1]
    spread = tf.one_hot(targets["label"], classes) * (1.0 - smoothing) + smoothing / classes
    return tf.nn.softmax_cross_entropy_with_logits(spread, output)


def mean_squared_error(output: tf.Tensor, targets: Targets, smoothing: float) -> tf.Tensor:
    """Return the mean squared error of each sample; only labels are smoothed."""
    squares = tf.square(output - targets["values"])
    return tf.reduce_mean(squares, axis=list(range(1, squares.shape.rank)))


def pixel_cross_entropy(
    output: tf.Tensor, targets: Targets, smoothing: float, weights: tuple[float, ...] = ()
) -> tf.Tensor:
    """Return the mean over all pixels of -log of the class's softmax times the class's weight.

    The divisor is the number of pixels, not the sum of their weights. The output is (samples,
    height, width, classes), the mask (samples, height, width). Only labels are smoothed.
    """
    mask = targets["mask"]
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(mask, output)
    if weights:
        losses *= tf.gather(tf.constant(weights, losses.dtype), mask)
    return tf.reduce_mean(losses, [1, 2])


def accuracy(output: tf.Tensor, targets: Targets) -> Sequence[tf.Tensor]:
    """Return the number of samples whose most probable class is their label."""
    hits = tf.equal(tf.argmax(output, axis=-1, output_type=tf.int32), targets["label"])
    return (tf.reduce_sum(tf.cast(hits, tf.float32)),)


def mean_absolute_error(output: tf.Tensor, targets: Targets) -> Sequence[tf.Tensor]:
    """Return the sum of the absolute errors and the number of values."""
    distances = tf.abs(output - targets["values"])
    return tf.reduce_sum(distances), tf.size(distances)


def intersection_over_union(output: tf.Tensor, targets: Targets) -> Sequence[tf.Tensor]:
    """Return the sum over samples of the ratio's mean over classes; 0 / 0 is 1."""
    mask = targets["mask"]
    found = tf.argmax(output, axis=-1, output_type=tf.int32)
    ratios = []
    for number in range(output.shape[-1]):
        one, other = tf.equal(found, number), tf.equal(mask, number)
        both, either = (
            tf.math.count_nonzero(pixels, [1, 2], dtype=tf.float64)
            for pixels in (one & other, one | other)
        )
        ratios.append(tf.where(either > 0.0, both / tf.maximum(either, 1.0), 1.0))
    return (tf.reduce_sum(tf.reduce_mean(tf.stack(ratios), 0)),)


Loss = Callable[[tf.Tensor, Targets, float], tf.Tensor]
Quality = Callable[[tf.Tensor, Targets], Sequence[tf.Tensor]]

LOSSES: dict[str, Loss] = {
    f.__name__: f for f in (softmax_cross_entropy, mean_squared_error, pixel_cross_entropy)
}
QUALITIES: dict[str, Quality] = {
    f.__name__: f for f in (accuracy, mean_absolute_error, intersection_over_union)
}


def loss_of(objective: Objective) -> Loss:
    """Return an objective's loss function, including its class weights."""
    if objective.loss == pixel_cross_entropy.__name__:
        return partial(pixel_cross_entropy, weights=objective.class_weights)
    return LOSSES[objective.loss]
