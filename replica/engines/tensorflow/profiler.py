"""TensorFlow's profiler: operators on CPUs and kernels on accelerators, read from its XSpace."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from aiperf_hpc.errors import EngineError
from aiperf_hpc.replica.engines.profiling import Launch, Recording, Rules, kernel_times
from aiperf_hpc.replica.tensorflow_import import tf
from aiperf_hpc.run.replica_requests import KernelCategory

OPERATOR_RULES: Rules = (
    (
        KernelCategory.FRAMEWORK,
        r"^(_?Arg|_?Retval|Const|NoOp|Identity|IdentityN|ReadVariableOp|VarHandleOp|Placeholder|"
        r"Shape|ShapeN|Size|Rank|Reshape|Squeeze|ExpandDims|StopGradient|PreventGradient|"
        r"BroadcastGradientArgs|\w*PartitionedCall|Switch|Merge|Enter|Exit|NextIteration|"
        r"LoopCond|If|While|StatelessIf|StatelessWhile|Assert|_?Send|_?Recv|_HostSend|_HostRecv|"
        r"ControlTrigger|ConcatOffset|Empty|InvertPermutation|Pack|DynamicStitch|"
        r"_EagerConst|VarIsInitializedOp|DestroyResourceOp)$",
    ),
    (KernelCategory.COMMUNICATION, r"Nccl|Collective|Horovod|AllReduce"),
    (KernelCategory.CONVOLUTION, r"Conv\d?D|Convolution|DepthwiseConv"),
    (KernelCategory.GEMM, r"MatMul|Einsum|GemmCall"),
    (KernelCategory.NORMALIZATION, r"BatchNorm|LayerNorm|InstanceNorm"),
    (KernelCategory.RELU, r"Relu"),
    (KernelCategory.POOLING, r"Pool"),
    (
        KernelCategory.REDUCTION,
        r"^(_Mkl)?(Sum|Mean|Prod|Max|Min|All|Any|ArgMax|ArgMin|L2Loss|Cumsum|InTopK\w*|TopK\w*|"
        r"UnsortedSegmentSum|SegmentSum|EuclideanNorm)$|Softmax|CrossEntropy",
    ),
    (
        KernelCategory.DATA_ARRANGEMENT,
        r"Transpose|Pad|Concat|Slice|Gather|Scatter|Tile|OneHot|Split|Reverse|BroadcastTo|Unpack|"
        r"SpaceTo|ToSpace|Resize|Where|Roll|Range|MklToTf|ToTf|InputConversion",
    ),
    (
        KernelCategory.MEMORY_COPY,
        r"^(Assign|AssignVariableOp|Copy|DeepCopy|ZerosLike|OnesLike|Fill)$",
    ),
    (
        KernelCategory.ELEMENT_WISE,
        r"^_?(Mkl)?(Fused)?(Add|AddV2|AddN|Sub|Mul|Div|RealDiv|FloorDiv|FloorMod|DivNoNan|Neg|Abs|"
        r"Sqrt\w*|Rsqrt\w*|Square\w*|SquaredDifference|Pow|Exp|Expm1|Log|Log1p|Sigmoid\w*|Tanh\w*|"
        r"Softplus\w*|Elu\w*|Selu\w*|Maximum|Minimum|Sign|Reciprocal\w*|Cast|ClipByValue|Equal|"
        r"NotEqual|Less\w*|Greater\w*|Logical\w*|IsFinite|IsNan|Select\w*|Floor|Ceil|Round|Rint|"
        r"Sin|Cos|Erf\w*|BiasAdd\w*|AssignAddVariableOp|AssignSubVariableOp|Xlogy\w*|Bitcast|"
        r"Random\w*|Stateless\w*)$|^Resource\w*Apply|^Apply|_?FusedElementwise|"
        r"GlobalNorm",
    ),
)
"""Rules for TensorFlow's operators by type, including replacements by Grappler and oneDNN."""

_READERS = (
    "tensorflow.tsl.profiler.protobuf.xplane_pb2",
    "tensorflow.core.profiler.protobuf.xplane_pb2",
)
"""Modules that define the format of the profiler's file in different versions of TensorFlow."""
_DEVICE = "/device:GPU"
_PICOSECONDS = 1e-12


class Span(NamedTuple):
    """An interval in which a thread or a stream was busy, in picoseconds."""

    start: int
    length: int
    name: str
    operator: str
    """Type of the operator."""


def record(work: Callable[[], None], folder: Path) -> Recording:
    """Profile ``work``, a function that waits for the device.

    Raises:
        EngineError: the profiler of this TensorFlow version writes no readable file.
    """
    reader = _reader()
    options = tf.profiler.experimental.ProfilerOptions(python_tracer_level=0)
    with tempfile.TemporaryDirectory(prefix=".aiperf-", dir=folder) as logs:
        tf.profiler.experimental.start(logs, options)
        try:
            work()
        finally:
            tf.profiler.experimental.stop()
        written = sorted(Path(logs).rglob("*.xplane.pb"))
        if not written:
            raise EngineError(f"the profiler of TensorFlow {tf.__version__} wrote no .xplane.pb")
        file = written[0].rename(folder / "trace.xplane.pb")
    space = reader.XSpace.FromString(file.read_bytes())
    planes = [plane for plane in space.planes if plane.name.startswith(_DEVICE)]
    tracks = list(streams(planes) if planes else threads(space.planes))
    kernels = kernel_times(launches(tracks), OPERATOR_RULES)
    return Recording(kernels, busy_seconds(tracks), "kernels" if planes else "operators", str(file))


def _reader() -> Any:  # noqa: ANN401 -- a module that protobuf made
    for name in _READERS:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    raise EngineError(
        f"TensorFlow {tf.__version__} has no reader of its profiler's file; use another version, "
        "or --engine torch"
    )


def threads(planes: Iterable[Any]) -> Iterator[list[Span]]:
    """Yield the operators executed by each host thread, which are events named ``node:Type``."""
    for plane in planes:
        for line in plane.lines:
            yield [
                Span(event.offset_ps, event.duration_ps, kind, kind)
                for event in line.events
                if (kind := _type_of(plane.event_metadata[event.metadata_id].name))
            ]


def _type_of(name: str) -> str:
    """Return the type of operator at the end of an event's name, or an empty string."""
    node, _, kind = name.rpartition(":")
    return kind if node and not node.endswith(":") and kind.isidentifier() else ""


def streams(planes: Iterable[Any]) -> Iterator[list[Span]]:
    """Yield the kernels of each stream of the accelerators, with their operators."""
    for plane in planes:
        of_operator = [n for n, stat in plane.stat_metadata.items() if stat.name == "tf_op"]
        for line in plane.lines:
            if not line.name.startswith("Stream"):
                continue  # The other lines repeat the events by steps, modules and operators.
            yield [
                Span(
                    event.offset_ps,
                    event.duration_ps,
                    plane.event_metadata[event.metadata_id].name,
                    _type_of(_text(plane, event, of_operator)),
                )
                for event in line.events
            ]


def _text(plane: Any, event: Any, wanted: list[int]) -> str:  # noqa: ANN401 -- of protobuf
    for stat in (*event.stats, *plane.event_metadata[event.metadata_id].stats):
        if stat.metadata_id in wanted:
            by_reference = stat.WhichOneof("value") == "ref_value"
            return str(plane.stat_metadata[stat.ref_value].name if by_reference else stat.str_value)
    return ""


def busy_seconds(tracks: Iterable[list[Span]]) -> float:
    """Return the total busy time of all tracks, without counting nested spans twice."""
    total = 0
    for spans in tracks:
        until = 0
        for span in sorted(spans):
            end = span.start + span.length
            total += max(0, end - max(span.start, until))
            until = max(until, end)
    return total * _PICOSECONDS


def launches(tracks: Iterable[list[Span]]) -> Iterator[Launch]:
    """Yield each execution with its exclusive time, without nested executions on the same track."""
    for spans in tracks:
        for span, own in own_times(spans):
            yield Launch(span.name, span.operator, 1, own * _PICOSECONDS)


def own_times(spans: Iterable[Span]) -> Iterator[tuple[Span, int]]:
    """Yield each span of a track and its length minus that of directly nested spans."""
    open_spans: list[tuple[Span, int]] = []
    for span in sorted(spans, key=lambda s: (s.start, -s.length)):
        while open_spans and (last := open_spans[-1][0]).start + last.length <= span.start:
            yield open_spans.pop()
        if open_spans:
            outer, own = open_spans[-1]
            open_spans[-1] = (outer, own - span.length)
        open_spans.append((span, span.length))
    yield from reversed(open_spans)
