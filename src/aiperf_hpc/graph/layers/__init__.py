"""The layers, by family; importing this package registers all of them."""

from __future__ import annotations

from aiperf_hpc.graph.layers.activation import LeakyReLU as LeakyReLU
from aiperf_hpc.graph.layers.activation import ReLU as ReLU
from aiperf_hpc.graph.layers.activation import Scale as Scale
from aiperf_hpc.graph.layers.activation import Softmax as Softmax
from aiperf_hpc.graph.layers.activation import Tanh as Tanh
from aiperf_hpc.graph.layers.base import LAYERS as LAYERS
from aiperf_hpc.graph.layers.base import ChannelRole as ChannelRole
from aiperf_hpc.graph.layers.base import Distribution as Distribution
from aiperf_hpc.graph.layers.base import InitialValue as InitialValue
from aiperf_hpc.graph.layers.base import Layer as Layer
from aiperf_hpc.graph.layers.base import Shape as Shape
from aiperf_hpc.graph.layers.base import SlidingWindow as SlidingWindow
from aiperf_hpc.graph.layers.convolution import Conv2D as Conv2D
from aiperf_hpc.graph.layers.convolution import Conv3D as Conv3D
from aiperf_hpc.graph.layers.convolution import FanOutConv2D as FanOutConv2D
from aiperf_hpc.graph.layers.dense import Dense as Dense
from aiperf_hpc.graph.layers.dense import FanOutDense as FanOutDense
from aiperf_hpc.graph.layers.dense import GlorotDense as GlorotDense
from aiperf_hpc.graph.layers.embedding import Embedding as Embedding
from aiperf_hpc.graph.layers.input import Input as Input
from aiperf_hpc.graph.layers.input import IntegerInput as IntegerInput
from aiperf_hpc.graph.layers.merging import Add as Add
from aiperf_hpc.graph.layers.normalisation import BatchNorm as BatchNorm
from aiperf_hpc.graph.layers.pooling import GlobalAveragePool2D as GlobalAveragePool2D
from aiperf_hpc.graph.layers.pooling import MaxPool2D as MaxPool2D
from aiperf_hpc.graph.layers.pooling import MaxPool3D as MaxPool3D
from aiperf_hpc.graph.layers.pooling import SameMaxPool2D as SameMaxPool2D
from aiperf_hpc.graph.layers.regions import BiasedConv2D as BiasedConv2D
from aiperf_hpc.graph.layers.regions import BoxShifts as BoxShifts
from aiperf_hpc.graph.layers.regions import ClassScores as ClassScores
from aiperf_hpc.graph.layers.regions import Detector as Detector
from aiperf_hpc.graph.layers.regions import NearestResize2D as NearestResize2D
from aiperf_hpc.graph.layers.regions import PositionwiseDense as PositionwiseDense
from aiperf_hpc.graph.layers.regions import ProposalHead as ProposalHead
from aiperf_hpc.graph.layers.regions import Proposals as Proposals
from aiperf_hpc.graph.layers.regions import RegionAlign as RegionAlign
from aiperf_hpc.graph.layers.regions import RegionAverage as RegionAverage
from aiperf_hpc.graph.layers.regions import RegionConv2D as RegionConv2D
from aiperf_hpc.graph.layers.regions import RegionFlatten as RegionFlatten
from aiperf_hpc.graph.layers.regularisation import Dropout as Dropout
from aiperf_hpc.graph.layers.reshaping import Flatten as Flatten
