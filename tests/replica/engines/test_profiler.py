"""The engines' profilers: what they time, and in which category it lands."""

from __future__ import annotations

import gzip
import json
import math
import re
from collections import defaultdict

import numpy as np
import pytest
from tests.support.networks import residual, rng

from aiperf_hpc.errors import EngineError
from aiperf_hpc.morphism.weights.weight_file import initial_weights
from aiperf_hpc.replica.data.base import labelled_images
from aiperf_hpc.replica.engines.base import NetworkState, RankEngine
from aiperf_hpc.replica.engines.profiling import (
    DEVICE_RULES,
    Launch,
    Recording,
    categorize,
    kernel_times,
    load_profiler,
)
from aiperf_hpc.replica.engines.tensorflow import profiler as tensorflow_profiler
from aiperf_hpc.replica.engines.tensorflow.profiler import (
    Span,
    busy_seconds,
    launches,
    own_times,
    streams,
)
from aiperf_hpc.replica.engines.torch import cpu_kernels
from aiperf_hpc.replica.engines.torch import profiler as torch_profiler
from aiperf_hpc.run.replica_requests import KernelCategory
from aiperf_hpc.trial import Hyperparameters

STEPS = 3


@pytest.fixture(scope="module")
def recording(engine: RankEngine, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """Some steps of a network with every kind of layer of a ResNet, all convolved as such."""
    graph = residual()
    network = engine.build(
        NetworkState(
            graph, initial_weights(graph, rng()), Hyperparameters(batch_size=4, learning_rate=0.1)
        )
    )
    images = rng().standard_normal((4, 9, 8, 3), np.float32)
    batch = labelled_images(images, np.array([0, 1, 2, 3], np.int32))
    network.warm(4)

    def steps() -> None:
        for _ in range(STEPS):
            network.train_step(batch, 0.1)
        network.drain_training()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_kernels, "AVX2", False)  # With it, 1 x 1 are products of matrices.
        return load_profiler(engine.name)(steps, tmp_path_factory.mktemp("profile"))


COUNTED = {
    "torch": {
        "aten::convolution_backward": KernelCategory.CONVOLUTION,
        "aten::native_batch_norm": KernelCategory.NORMALIZATION,
        "aten::native_batch_norm_backward": KernelCategory.NORMALIZATION,
        "aten::threshold_backward": KernelCategory.RELU,
        "aten::max_pool2d_with_indices": KernelCategory.POOLING,
        "aten::max_pool2d_with_indices_backward": KernelCategory.POOLING,
        "aten::addmm": KernelCategory.GEMM,
        "aten::mm": KernelCategory.GEMM,
        "aten::_log_softmax": KernelCategory.REDUCTION,
        "aten::empty": KernelCategory.FRAMEWORK,
        "aten::copy_": KernelCategory.MEMORY_COPY,
    },
    "tensorflow": {
        "Conv2D": KernelCategory.CONVOLUTION,
        "Conv2DBackpropFilter": KernelCategory.CONVOLUTION,
        "FusedBatchNormV3": KernelCategory.NORMALIZATION,
        "FusedBatchNormGradV3": KernelCategory.NORMALIZATION,
        "ReluGrad": KernelCategory.RELU,
        "MaxPool": KernelCategory.POOLING,
        "MaxPoolGrad": KernelCategory.POOLING,
        "MatMul": KernelCategory.GEMM,
        "SparseSoftmaxCrossEntropyWithLogits": KernelCategory.REDUCTION,
        "ResourceApplyKerasMomentum": KernelCategory.ELEMENT_WISE,
        "ReadVariableOp": KernelCategory.FRAMEWORK,
    },
}
"""Operators that such a step cannot do without, and what each of them is."""
BACKWARD = {
    "torch": ("aten::convolution_backward", "aten::native_batch_norm_backward"),
    "tensorflow": ("Conv2DBackpropFilter", "FusedBatchNormGradV3"),
}


ONEDNN = re.compile("^_Mkl(Native)?")
"""How TensorFlow calls an operator that oneDNN computes: of small networks, on some processors."""


def test_operators_are_categorized(engine: RankEngine, recording: Recording) -> None:
    found = {ONEDNN.sub("", kernel.name): kernel.category for kernel in recording.kernels}
    expected = COUNTED[engine.name]
    assert {name: found.get(name) for name in expected} == expected
    unknown = [k.name for k in recording.kernels if k.category is KernelCategory.UNCATEGORIZED]
    assert unknown == []


def test_operators_are_counted_once_per_step(engine: RankEngine, recording: Recording) -> None:
    kinds = [type(node.layer).__name__ for node in residual().nodes]
    found = {ONEDNN.sub("", kernel.name): kernel.calls for kernel in recording.kernels}
    convolution, normalisation = BACKWARD[engine.name]
    assert found[convolution] == STEPS * kinds.count("Conv2D")
    assert found[normalisation] == STEPS * kinds.count("BatchNorm")


def test_times_add_up_to_the_profilers_own_total(recording: Recording) -> None:
    assert recording.timed == "operators"
    total = math.fsum(kernel.seconds for kernel in recording.kernels)
    assert total == pytest.approx(recording.total_seconds, rel=1e-9)
    assert min(kernel.seconds for kernel in recording.kernels) >= 0.0
    longest = [kernel.seconds for kernel in recording.kernels]
    assert longest == sorted(longest, reverse=True)


def test_the_total_of_torch_is_that_of_its_trace(engine: RankEngine, recording: Recording) -> None:
    """What lies in nothing else, on each thread of the trace, is what all of it took."""
    if engine.name != "torch":
        pytest.skip("the other one's total is taken from its trace")
    with gzip.open(recording.trace, "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    wanted = ("cpu_op", "user_annotation")
    threads: dict[str, list[Span]] = defaultdict(list)
    for event in events:
        if event.get("ph") == "X" and event.get("cat") in wanted:
            start, length = round(1e6 * event["ts"]), round(1e6 * event["dur"])
            threads[str(event["tid"])].append(Span(start, length, event["name"], ""))
    assert busy_seconds(threads.values()) == pytest.approx(recording.total_seconds, rel=0.02)


def test_an_engine_that_computes_nothing_has_no_profiler() -> None:
    with pytest.raises(EngineError, match="engine 'simulated' computes nothing"):
        load_profiler("simulated")


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16",
         KernelCategory.CONVOLUTION),
        ("cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>",
         KernelCategory.DATA_ARRANGEMENT),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1, true>",
         KernelCategory.NORMALIZATION),
        ("Cijk_Ailk_Bljk_SB_MT128x64x16_SE_1LDSB0", KernelCategory.GEMM),
        ("void at::native::(anonymous namespace)::max_pool_forward_nchw<float, int>",
         KernelCategory.POOLING),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)"
         "::threshold_kernel_impl<float>", KernelCategory.RELU),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>",
         KernelCategory.ELEMENT_WISE),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>",
         KernelCategory.REDUCTION),
        ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 4, true, false>",
         KernelCategory.REDUCTION),
        ("Memcpy HtoD (Pageable -> Device)", KernelCategory.MEMORY_COPY),
        ("Memset (Device)", KernelCategory.MEMORY_COPY),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", KernelCategory.COMMUNICATION),
        ("CatArrayBatchedCopy<float>", KernelCategory.DATA_ARRANGEMENT),
        ("unheard_of", KernelCategory.UNCATEGORIZED),
    ],
)  # fmt: skip
def test_kernels_are_categorized_by_name(name: str, category: KernelCategory) -> None:
    assert categorize(name, DEVICE_RULES) is category


def test_a_kernel_is_of_the_category_of_what_launched_it() -> None:
    """A matrix product within a convolution is a convolution; of a view its name decides."""
    launched = [
        Launch("ampere_sgemm_32x32", "aten::cudnn_convolution", 2, 3.0),
        Launch("ampere_sgemm_32x32", "aten::addmm", 1, 1.0),
        Launch("ampere_sgemm_32x32", "", 1, 0.5),
        Launch("Memcpy HtoD", "aten::to", 1, 0.25),
    ]
    found = [
        (k.name, k.category, k.seconds)
        for k in kernel_times(launched, torch_profiler.OPERATOR_RULES)
    ]
    assert found == [
        ("aten::cudnn_convolution > ampere_sgemm_32x32", KernelCategory.CONVOLUTION, 3.0),
        ("aten::addmm > ampere_sgemm_32x32", KernelCategory.GEMM, 1.0),
        ("ampere_sgemm_32x32", KernelCategory.GEMM, 0.5),
        ("aten::to > Memcpy HtoD", KernelCategory.MEMORY_COPY, 0.25),
    ]


def test_nested_operators_are_not_counted_twice() -> None:
    """Of 0-10, 2-5 and 6-9 are others', and of 6-9 so is 7-8; 12-13 is alone: 11 in all."""
    spans = [
        Span(0, 10, "While", "While"),
        Span(2, 3, "Conv2D", "Conv2D"),
        Span(6, 3, "MatMul", "MatMul"),
        Span(7, 1, "Relu", "Relu"),
        Span(12, 1, "Relu", "Relu"),
    ]
    own = sorted((span.name, span.start, seconds) for span, seconds in own_times(spans))
    assert own == [
        ("Conv2D", 2, 3), ("MatMul", 6, 2), ("Relu", 7, 1), ("Relu", 12, 1), ("While", 0, 4),
    ]  # fmt: skip
    assert busy_seconds([spans]) == pytest.approx(11e-12)
    assert busy_seconds([spans, spans]) == pytest.approx(22e-12)


def test_kernels_on_streams_of_an_accelerator_are_read_with_their_operators() -> None:
    """A plane as CUPTI's collector writes it; other lines repeat what the streams say."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    plane = xplane_pb2.XPlane(name="/device:GPU:0")
    plane.stat_metadata[1].name = "tf_op"
    for number, name in ((1, "sgemm_128x64"), (2, "MEMCPYH2D")):
        plane.event_metadata[number].name = name
    stream, steps = plane.lines.add(name="Stream #13(Compute)"), plane.lines.add(name="Steps")
    kernel = stream.events.add(metadata_id=1, offset_ps=0, duration_ps=4_000_000_000_000)
    kernel.stats.add(metadata_id=1, str_value="model/dense/MatMul:MatMul")
    stream.events.add(metadata_id=2, offset_ps=5_000_000_000_000, duration_ps=1_000_000_000_000)
    steps.events.add(metadata_id=1, offset_ps=0, duration_ps=6_000_000_000_000)
    tracks = list(streams([plane]))
    assert busy_seconds(tracks) == 5.0
    times = kernel_times(launches(tracks), tensorflow_profiler.OPERATOR_RULES)
    assert [(k.name, k.category, k.seconds) for k in times] == [
        ("MatMul > sgemm_128x64", KernelCategory.GEMM, 4.0),
        ("MEMCPYH2D", KernelCategory.MEMORY_COPY, 1.0),
    ]
