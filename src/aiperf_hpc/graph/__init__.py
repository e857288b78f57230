"""The architecture of a network: a frozen graph of typed layers that knows no framework.

Shapes leave the batch dimension out and are channels-last: ``(height, width, channels)`` for
images, ``(depth, height, width, channels)`` for volumes, ``(features,)`` for vectors. What a layer
is stands at its class in ``layers/``; a new one is a class there, a function in
``ops_counter/layers.py`` and one in each engine's ``layers.py``.
"""

from __future__ import annotations

from aiperf_hpc.graph.graph import Graph as Graph
from aiperf_hpc.graph.layers import LAYERS as LAYERS
from aiperf_hpc.graph.layers import Add as Add
from aiperf_hpc.graph.layers import AtrousConv2D as AtrousConv2D
from aiperf_hpc.graph.layers import BatchNorm as BatchNorm
from aiperf_hpc.graph.layers import BiasedConv2D as BiasedConv2D
from aiperf_hpc.graph.layers import BoxShifts as BoxShifts
from aiperf_hpc.graph.layers import ChannelAffine as ChannelAffine
from aiperf_hpc.graph.layers import ChannelRole as ChannelRole
from aiperf_hpc.graph.layers import ClassScores as ClassScores
from aiperf_hpc.graph.layers import Concat as Concat
from aiperf_hpc.graph.layers import Conv2D as Conv2D
from aiperf_hpc.graph.layers import Conv3D as Conv3D
from aiperf_hpc.graph.layers import ConvTranspose2D as ConvTranspose2D
from aiperf_hpc.graph.layers import Dense as Dense
from aiperf_hpc.graph.layers import DepthwiseConv2D as DepthwiseConv2D
from aiperf_hpc.graph.layers import Detector as Detector
from aiperf_hpc.graph.layers import Distribution as Distribution
from aiperf_hpc.graph.layers import Dropout as Dropout
from aiperf_hpc.graph.layers import Embedding as Embedding
from aiperf_hpc.graph.layers import FanOutConv2D as FanOutConv2D
from aiperf_hpc.graph.layers import FanOutDense as FanOutDense
from aiperf_hpc.graph.layers import Flatten as Flatten
from aiperf_hpc.graph.layers import GlobalAveragePool2D as GlobalAveragePool2D
from aiperf_hpc.graph.layers import GlorotDense as GlorotDense
from aiperf_hpc.graph.layers import ImagePool2D as ImagePool2D
from aiperf_hpc.graph.layers import InitialValue as InitialValue
from aiperf_hpc.graph.layers import Input as Input
from aiperf_hpc.graph.layers import IntegerInput as IntegerInput
from aiperf_hpc.graph.layers import Layer as Layer
from aiperf_hpc.graph.layers import LeakyReLU as LeakyReLU
from aiperf_hpc.graph.layers import MaxPool2D as MaxPool2D
from aiperf_hpc.graph.layers import MaxPool3D as MaxPool3D
from aiperf_hpc.graph.layers import NearestResize2D as NearestResize2D
from aiperf_hpc.graph.layers import PositionwiseDense as PositionwiseDense
from aiperf_hpc.graph.layers import ProposalHead as ProposalHead
from aiperf_hpc.graph.layers import Proposals as Proposals
from aiperf_hpc.graph.layers import RegionAlign as RegionAlign
from aiperf_hpc.graph.layers import RegionAverage as RegionAverage
from aiperf_hpc.graph.layers import RegionConv2D as RegionConv2D
from aiperf_hpc.graph.layers import RegionFlatten as RegionFlatten
from aiperf_hpc.graph.layers import ReLU as ReLU
from aiperf_hpc.graph.layers import SameMaxPool2D as SameMaxPool2D
from aiperf_hpc.graph.layers import Scale as Scale
from aiperf_hpc.graph.layers import Shape as Shape
from aiperf_hpc.graph.layers import SlidingWindow as SlidingWindow
from aiperf_hpc.graph.layers import Softmax as Softmax
from aiperf_hpc.graph.layers import Tanh as Tanh
from aiperf_hpc.graph.layers import Tile as Tile
from aiperf_hpc.graph.layers import UniformConv2D as UniformConv2D
from aiperf_hpc.graph.node import SCHEMA_VERSION as SCHEMA_VERSION
from aiperf_hpc.graph.node import Node as Node
