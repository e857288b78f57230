"""The losses and measures of the ``tensorflow`` engine, by the names in an objective.

A loss is a function of the network's output and a batch's targets that returns the loss of each
sample, (samples,); its mean is trained on. A measure returns the parts of its ``Measure``, in
their order: its sums over the batch, (), or its rows, (samples,).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from aiperf_hpc.replica.tensorflow_import import tf

Targets = Mapping[str, tf.Tensor]


def softmax_cross_entropy(output: tf.Tensor, targets: Targets, smoothing: float) -> tf.Tensor:
    """Return -log of the label's softmax; (samples, classes) and labels (samples,).

    With smoothing, a share of the target is spread over all classes (Szegedy et al. 2016,
    section 7).
    """
    if smoothing == 0.0:
        return tf.nn.sparse_softmax_cross_entropy_with_logits(targets["label"], output)
    classes = output.shape[-1]
    spread = tf.one_hot(targets["label"], classes) * (1.0 - smoothing) + smoothing / classes
    return tf.nn.softmax_cross_entropy_with_logits(spread, output)


def mean_squared_error(output: tf.Tensor, targets: Targets, smoothing: float) -> tf.Tensor:
    """Return the mean square of a sample's distances to its targets."""
    del smoothing  # Labels alone are smoothed.
    squares = tf.square(output - targets["values"])
    return tf.reduce_mean(squares, axis=list(range(1, squares.shape.rank)))


def accuracy(output: tf.Tensor, targets: Targets) -> Sequence[tf.Tensor]:
    """Return how many samples have their label as the most probable class."""
    hits = tf.equal(tf.argmax(output, axis=-1, output_type=tf.int32), targets["label"])
    return (tf.reduce_sum(tf.cast(hits, tf.float32)),)


def mean_absolute_error(output: tf.Tensor, targets: Targets) -> Sequence[tf.Tensor]:
    """Return the sum of all distances to targets, and their number."""
    distances = tf.abs(output - targets["values"])
    return tf.reduce_sum(distances), tf.size(distances)


Loss = Callable[[tf.Tensor, Targets, float], tf.Tensor]
Quality = Callable[[tf.Tensor, Targets], Sequence[tf.Tensor]]

LOSSES: dict[str, Loss] = {f.__name__: f for f in (softmax_cross_entropy, mean_squared_error)}
QUALITIES: dict[str, Quality] = {f.__name__: f for f in (accuracy, mean_absolute_error)}
