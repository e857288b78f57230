"""Reference networks of public benchmarks in plain PyTorch and Keras.

Each is given the framework's name, and returns a model with what makes the mean loss of its output
and a batch's targets. PyTorch's read (samples, channels, ...), Keras' (samples, ..., channels).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

SLOPE, SCALE, DROPOUT = 0.3, 1.2, 0.5
CHANNELS = (32, 64, 128, 256, 512)
HIDDEN = (128, 64)


class Model(NamedTuple):
    """A model of a framework, and its loss."""

    network: Any
    loss: Callable[[Any, Mapping[str, Any]], Any]
    """Takes the network's output, in fp32, and the targets; returns the mean loss."""


Plain = Callable[[str], Model]


def cosmoflow(side: int, framework: str) -> Model:
    """Return CosmoFlow with kernels of 3. [mlcommons/hpc, cosmoflow/models/cosmoflow.py]"""
    if framework == "torch":
        return Model(_cosmoflow_torch(side), _squares_torch)
    return Model(_cosmoflow_keras(side), _squares_tensorflow)


def _cosmoflow_torch(side: int) -> Any:  # noqa: ANN401 -- a torch module
    from torch import nn

    layers: list[nn.Module] = []
    below = 4
    for channels in CHANNELS:
        layers += [nn.Conv3d(below, channels, 3, padding=1), nn.LeakyReLU(SLOPE), nn.MaxPool3d(2)]
        below, side = channels, side // 2
    layers.append(nn.Flatten())
    below *= side**3
    for units in HIDDEN:
        layers += [nn.Linear(below, units), nn.LeakyReLU(SLOPE), nn.Dropout(DROPOUT)]
        below = units
    return nn.Sequential(*layers, nn.Linear(below, 4), nn.Tanh())


def _cosmoflow_keras(side: int) -> Any:  # noqa: ANN401 -- a Keras model
    import keras
    from keras import layers

    made: list[Any] = [keras.Input((side, side, side, 4))]
    for channels in CHANNELS:
        made += [
            layers.Conv3D(channels, 3, padding="same"),
            layers.LeakyReLU(negative_slope=SLOPE),
            layers.MaxPool3D(2),
        ]
    made.append(layers.Flatten())
    for units in HIDDEN:
        made += [
            layers.Dense(units),
            layers.LeakyReLU(negative_slope=SLOPE),
            layers.Dropout(DROPOUT),
        ]
    return keras.Sequential([*made, layers.Dense(4, activation="tanh")])


def _squares_torch(output: Any, targets: Mapping[str, Any]) -> Any:  # noqa: ANN401
    from torch.nn.functional import mse_loss

    return mse_loss(SCALE * output, targets["values"])


def _squares_tensorflow(output: Any, targets: Mapping[str, Any]) -> Any:  # noqa: ANN401
    from aiperf_hpc.replica.tensorflow_import import tf

    return tf.reduce_mean(tf.square(SCALE * output - targets["values"]))


def resnet50(framework: str) -> Model:
    """Return ResNet-50 v1.5 for 1,000 classes: a stage's stride in its first 3 x 3 convolution."""
    if framework == "torch":
        from torch.nn.functional import cross_entropy
        from torch_resnet50 import resnet50 as network

        return Model(
            network(strided_3x3=True),
            lambda output, targets: cross_entropy(output, targets["label"].long()),
        )
    return Model(resnet50_keras(224, strided_3x3=True), _crossed_tensorflow)


def resnet50_keras(side: int, *, strided_3x3: bool) -> Any:  # noqa: ANN401 -- a Keras model
    """Return the network up to its softmax, for 1,000 classes; see ``torch_resnet50``."""
    import keras
    from keras import layers

    def conv_norm(x: Any, channels: int, kernel: int, stride: int = 1) -> Any:  # noqa: ANN401
        made = layers.Conv2D(channels, kernel, stride, padding="same", use_bias=False)(x)
        return layers.BatchNormalization()(made)

    inputs = keras.Input((side, side, 3))
    x = layers.ReLU()(conv_norm(inputs, 64, 7, 2))
    x = layers.MaxPool2D(3, 2, padding="same")(x)
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            width, stride = 64 * 2**stage, 2 if stage and not block else 1
            first, second = (1, stride) if strided_3x3 else (stride, 1)
            made = layers.ReLU()(conv_norm(x, width, 1, first))
            made = layers.ReLU()(conv_norm(made, width, 3, second))
            made = conv_norm(made, 4 * width, 1)
            short = x if block else conv_norm(x, 4 * width, 1, stride)
            x = layers.ReLU()(layers.Add()([made, short]))
    return keras.Model(inputs, layers.Dense(1000)(layers.GlobalAveragePooling2D()(x)))


def _crossed_tensorflow(output: Any, targets: Mapping[str, Any]) -> Any:  # noqa: ANN401
    from aiperf_hpc.replica.tensorflow_import import tf

    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets["label"], output)
    return tf.reduce_mean(losses)


def deepcam(framework: str) -> Model:
    """Return DeepCAM. [mlcommons/hpc, deepcam/src/deepCam/architecture/deeplab_xception.py]"""
    from torch.nn import ReLU
    from torch.nn.functional import cross_entropy
    from torch_deepcam import DeepCAM

    if framework != "torch":
        raise ValueError("DeepCAM's reference is in PyTorch")
    network = DeepCAM()
    for module in network.modules():
        if isinstance(module, ReLU):
            module.inplace = True  # As in the reference.
    return Model(network, lambda output, targets: cross_entropy(output, targets["mask"].long()))
