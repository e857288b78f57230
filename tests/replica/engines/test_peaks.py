"""The kernels whose rates are peaks: their operations, their sizes, and a rank's own peak."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from aiperf_hpc.config import RunConfig, validate
from aiperf_hpc.host.machine import last_level_cache_bytes
from aiperf_hpc.replica.engines import peaks
from aiperf_hpc.replica.engines.peaks import (
    LEAST,
    RANK_KERNELS,
    Images,
    PeakDevice,
    Rates,
    Work,
    array_bytes,
    rank_peak,
    sweep,
)
from aiperf_hpc.replica.engines.tensorflow.peak_kernels import TensorFlowDevice
from aiperf_hpc.replica.engines.torch.peak_kernels import TorchDevice
from aiperf_hpc.trial import DevicePeak

Sections = dict[str, dict[str, object]]


@pytest.fixture
def torch_cpu() -> Iterator[TorchDevice]:
    threads = torch.get_num_threads()
    yield TorchDevice("cpu", 0, 1)
    torch.set_num_threads(threads)


@pytest.fixture(params=["torch", "tensorflow"])
def device(request: pytest.FixtureRequest, torch_cpu: TorchDevice) -> PeakDevice:
    if request.param == "torch":
        return torch_cpu
    return TensorFlowDevice("cpu:0", "model", 1, has_tf32=False)


def counted(work: Work) -> int:
    with FlopCounterMode(display=False) as counter:
        work.run()
    return int(counter.get_total_flops())


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_pytorch_counts_the_same_operations(torch_cpu: TorchDevice, precision: str) -> None:
    """2 m n k of a product; 2 x 9 C^2 at each place of a convolution."""
    product = torch_cpu.product(24, precision)
    assert product.amount == 2 * 24 * 24 * 24 == counted(product)
    convolution = torch_cpu.convolution(Images(2, 4, 6), precision)
    assert convolution.amount == 2 * 9 * 4 * 4 * 2 * 6 * 6 == counted(convolution)


def test_results_have_the_shapes_of_their_sizes(device: PeakDevice) -> None:
    product: Any = device.product(24, "fp32").run()
    images: Any = device.convolution(Images(2, 4, 6), "fp32").run()
    assert tuple(product.shape) == (24, 24)
    assert tuple(images.shape) in ((2, 4, 6, 6), (2, 6, 6, 4))


def test_memory_kernels_read_and_write_what_stream_counts(device: PeakDevice) -> None:
    """A copy moves two arrays, a triad or an update three; a[i] = b[i] + 3 c[i] = 4 for ones."""
    works = {kernel: device.movement(kernel, 4000) for kernel in device.arrays}
    results = {kernel: work.run() for kernel, work in works.items()}
    amounts = {kernel: work.amount for kernel, work in works.items()}
    if isinstance(device, TorchDevice):
        assert amounts == {"copy": 8000, "triad": 12000}
        assert isinstance(results["triad"], torch.Tensor)
        assert results["triad"].tolist() == [4.0] * 1000
    else:
        assert amounts == {"update": 12000}


def test_arrays_are_four_times_the_last_cache() -> None:
    assert min(array_bytes(on_cpu=True)) >= 4 * (last_level_cache_bytes() or 0)
    assert min(array_bytes(on_cpu=True)) >= 64 * 2**20


def test_every_precision_has_both_kernels_and_memory_one_type(torch_cpu: TorchDevice) -> None:
    assert [(kernel, precision) for kernel, precision, _ in torch_cpu.kernels()] == [
        *((k, p) for p in ("fp32", "bf16", "fp16") for k in ("matrix product", "convolution")),
        ("copy", "fp32"),
        ("triad", "fp32"),
    ]


def test_sizes_that_do_not_fit(torch_cpu: TorchDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peaks, "available_bytes", lambda: 6 * 16 * 256**2)
    sizes = {kernel: len(makes) for kernel, _, makes in torch_cpu.kernels()}
    assert sizes == {"matrix product": 1, "convolution": 0, "copy": 0, "triad": 0}


class Clock:
    """A clock that the works advance."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def work(self, amount: int, rate: float) -> Work:
        def run() -> None:
            self.now += amount / rate

        return Work(str(amount), amount, run)


def test_sizes_ascend_while_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 100 a second calls of 1, 2, 4 and 8 take 10 to 80 ms; 1000 would take 10 s."""
    clock = Clock(monkeypatch)
    makes = [partial(clock.work, amount, 100.0) for amount in (1, 2, 4, 8, 1000)]
    sizes = list(sweep(makes, lambda: None, 5.0))
    assert [size.work.amount for size in sizes] == [1, 2, 4, 8]
    for size in sizes:
        assert len(size.rates) >= LEAST
        assert size.rates == [pytest.approx(100.0)] * len(size.rates)
    assert clock.now <= 5.0


def test_the_first_size_is_measured_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    (only,) = sweep([partial(clock.work, a, 1.0) for a in (10, 20)], lambda: None, 0.1)
    assert len(only.rates) == LEAST


def config(**sections: dict[str, object]) -> RunConfig:
    base: Sections = {
        "dataset": {"name": "digits"},
        "training": {"precision": "fp32"},
        "peaks": {"at_start_seconds": 0.002},
        "engine": {"name": "torch", "device": "cpu"},
    }
    return validate({**base, **sections}, "here")


def measured(**sections: dict[str, object]) -> DevicePeak:
    peak = rank_peak(config(**sections), 1, 0)
    assert peak is not None
    return peak


@pytest.mark.usefixtures("torch_cpu")
@pytest.mark.parametrize(
    ("engine", "device_name", "precision"),
    [("torch", "cpu", "fp32"), ("torch", "cpu", "bf16"), ("tensorflow", "cpu:0", "fp32")],
)
def test_the_peak_of_a_rank(engine: str, device_name: str, precision: str) -> None:
    peak = measured(engine={"name": engine, "device": "cpu"}, training={"precision": precision})
    assert (peak.device, peak.threads, peak.precision) == (device_name, 1, precision)
    assert set(peak.rates) == {"matrix product", "convolution"}
    assert peak.absent == {}
    assert peak.seconds > 0.0


@pytest.mark.parametrize(
    "sections", [{"peaks": {"at_start_seconds": 0.0}}, {"engine": {"name": "simulated"}}]
)
def test_no_peak_is_measured_without_request_or_computation(sections: Sections) -> None:
    assert rank_peak(config(**sections), 1, 0) is None


@pytest.mark.usefixtures("torch_cpu")
def test_convolutions_are_tuned_and_settings_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a training could be faster than its peak. A GPU's kernels switch TF32."""
    cudnn = torch.backends.cudnn
    monkeypatch.setattr(cudnn, "benchmark", False)
    monkeypatch.setattr(cudnn, "allow_tf32", True)
    tuned: list[bool] = []

    def sweep(makes: Sequence[Callable[[], Any]], finish: object, seconds: float) -> list[Rates]:
        tuned.append(cudnn.benchmark)
        cudnn.allow_tf32 = False
        return [Rates(makes[0](), [1.0], 1.0)]

    monkeypatch.setattr(peaks, "sweep", sweep)
    assert measured().rates == {"matrix product": 1.0, "convolution": 1.0}
    assert tuned == [True, True]
    assert not cudnn.benchmark
    assert cudnn.allow_tf32


@pytest.mark.usefixtures("torch_cpu")
def test_a_kernel_without_a_rate_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def sweep(makes: Sequence[Callable[[], Any]], finish: object, seconds: float) -> list[Rates]:
        if len(makes) > len(RANK_KERNELS) and makes[0]().size.startswith("256"):
            return []
        raise RuntimeError("no such kernel\nin this build")

    monkeypatch.setattr(peaks, "sweep", sweep)
    peak = measured()
    assert peak.rates == {}
    assert peak.absent == {
        "matrix product": "too little memory is free",
        "convolution": "no such kernel",
    }
