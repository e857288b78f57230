"""PyTorch's profiler: exclusive times of operators on CPUs and of kernels on CUDA and ROCm."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from aiperf_hpc.replica.engines.profiling import Launch, Recording, Rules, kernel_times
from aiperf_hpc.run.replica_requests import KernelCategory

OPERATOR_RULES: Rules = (
    (
        KernelCategory.FRAMEWORK,
        r"^autograd::|^torch::autograd::|Backward\d*$|^Optimizer\.|^detach|^ProfilerStep|"
        r"^aten::(empty|new_empty|as_strided|view|_?reshape|_unsafe_view|expand|permute|movedim|"
        r"transpose_?$|t$|detach|resize|squeeze|unsqueeze|slice$|select$|split|alias|narrow|"
        r"lift_fresh|scalar_tensor|item|_local_scalar_dense|is_nonzero|result_type|_nnpack_available|"
        r"set_|unbind|unflatten|flatten|to$|stride|conj|resolve)|^torch_|^Torch-Compiled|"
        r"^CompiledF",
    ),
    (KernelCategory.COMMUNICATION, r"^(c10d|nccl|gloo|record_param_comms)"),
    (KernelCategory.CONVOLUTION, r"^(aten|mkldnn)::.*conv(?!ert)|^mkldnn::_convolution"),
    (
        KernelCategory.GEMM,
        r"^aten::(mm|bmm|addmm|baddbmm|matmul|linear|mv|addmv|dot|einsum|_addmm_activation|"
        r"mkl_linear|mkldnn_linear|_scaled_mm)|^mkldnn::_linear|^_Product$|attention",
    ),
    (KernelCategory.NORMALIZATION, r"^aten::.*(batch|layer|group|instance)_norm"),
    (KernelCategory.RELU, r"^aten::(leaky_|p)?relu|^aten::threshold|^aten::clamp_min|^_Activation"),
    (KernelCategory.POOLING, r"^aten::.*pool"),
    (
        KernelCategory.REDUCTION,
        r"^aten::(sum|mean|prod|cumsum|norm|linalg_vector_norm|_foreach_norm|max$|min$|amax|amin|"
        r"argmax|argmin|all$|any$|var|std|topk|sort|eq_all)|softmax|loss|cross_entropy",
    ),
    (
        KernelCategory.DATA_ARRANGEMENT,
        r"^aten::(cat|_cat|stack|_pad|pad|constant_pad|index|gather|scatter|slice_|select_|"
        r"im2col|col2im|roll|flip|repeat|tile|tril|triu|embedding|upsample|masked_|where|take|"
        r"one_hot|unfold|fold|_to_dense|_reorder)|mkldnn_reorder|^_(ContiguousConvolution|CopyStrided)$",
    ),
    (
        KernelCategory.MEMORY_COPY,
        r"^aten::(copy|_to_copy|_foreach_copy|clone|contiguous|fill|zero|ones|zeros|new_zeros|"
        r"full|pin_memory|_pin_memory|is_pinned)",
    ),
    (
        KernelCategory.ELEMENT_WISE,
        r"^aten::(__(and|or|xor)__|_fused_|_foreach_|_amp_|add|sub|rsub|mul|div|neg|abs|sqrt|rsqrt|square|pow|"
        r"exp|log|sigmoid|tanh|silu|gelu|elu|hardtanh|softplus|clamp|lerp|maximum|minimum|sign|"
        r"reciprocal|dropout|native_dropout|bernoulli|normal|uniform|random|rand|arange|eq|ne|lt|"
        r"le|gt|ge|logical|bitwise|isfinite|isnan|floor|ceil|round|sin|cos|erf|cast)",
    ),
)
"""Rules for PyTorch's operators and the annotations of autograd and optimizers."""


def record(work: Callable[[], None], folder: Path) -> Recording:
    """Profile ``work``, a function that waits for the device."""
    on_device = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA][:on_device]]
    with profile(activities=activities) as profiler:
        work()
    trace = str(folder / "trace.json.gz")
    profiler.export_chrome_trace(trace)
    events: Any = profiler.events()
    if on_device and (launches := device_launches(events)):
        kernels = kernel_times(launches, OPERATOR_RULES)
        microseconds = sum(e.time_range.elapsed_us() for e in _device_events(events))
        return Recording(kernels, float(microseconds) / 1e6, "kernels", trace)
    averages: Any = profiler.key_averages()
    launches = [Launch(r.key, r.key, r.count, r.self_cpu_time_total / 1e6) for r in averages]
    kernels = kernel_times(launches, OPERATOR_RULES)
    return Recording(kernels, averages.self_cpu_time_total / 1e6, "operators", trace)


def _device_events(events: Iterable[Any]) -> list[Any]:
    on_device = (event for event in events if event.device_type.name != "CPU")
    return [event for event in on_device if not event.is_user_annotation]


def device_launches(events: Iterable[Any]) -> list[Launch]:
    """Return the executions of kernels with known operators, then those without."""
    events = list(events)
    launches = [
        Launch(kernel.name, event.name, 1, kernel.duration / 1e6)
        for event in events
        for kernel in event.kernels
    ]
    calls, seconds = defaultdict[str, int](int), defaultdict[str, float](float)
    for event in _device_events(events):
        calls[event.name] += 1
        seconds[event.name] += event.time_range.elapsed_us() / 1e6
    for launch in launches:
        calls[launch.kernel] -= launch.calls
        seconds[launch.kernel] -= launch.seconds
    rest = [Launch(name, "", calls[name], seconds[name]) for name in calls if calls[name] > 0]
    return launches + rest
