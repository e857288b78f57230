"""The kernels whose rates are peaks: what they count, and how their sizes are chosen."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from aiperf_hpc.host.machine import last_level_cache_bytes
from aiperf_hpc.replica.engines import peak_timing
from aiperf_hpc.replica.engines.peak_timing import LEAST, array_bytes, kernels_of, sweep
from aiperf_hpc.replica.engines.peak_work import Images, PeakDevice, Work
from aiperf_hpc.replica.engines.torch.peak_kernels import TorchDevice


def torch_cpu() -> TorchDevice:
    return TorchDevice("cpu", 0, 1)


def tensorflow_cpu() -> PeakDevice:
    pytest.importorskip("tensorflow")
    from aiperf_hpc.replica.engines.tensorflow import peak_kernels as kernels

    device: PeakDevice = kernels.TensorFlowDevice("cpu:0", "model", 1)
    return device


def executed(work: Work) -> int:
    with FlopCounterMode(display=False) as counter:
        work.run()
    return int(counter.get_total_flops())


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_pytorch_counts_the_same_operations(precision: str) -> None:
    """2 m n k of a product; 2 x 9 C^2 at each place of a convolution."""
    product = torch_cpu().product(24, precision)
    assert product.amount == 2 * 24 * 24 * 24 == executed(product)
    convolution = torch_cpu().convolution(Images(2, 4, 6), precision)
    assert convolution.amount == 2 * 9 * 4 * 4 * 2 * 6 * 6 == executed(convolution)


@pytest.mark.parametrize("make", [torch_cpu, tensorflow_cpu])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_kernels_make_what_their_sizes_say(
    make: Callable[[], PeakDevice], precision: str
) -> None:  # fmt: skip
    device = make()
    made = device.product(24, precision).run()
    assert tuple(made.shape) == (24, 24)  # type: ignore[attr-defined]
    images = device.convolution(Images(2, 4, 6), precision).run()
    shape = tuple(images.shape)  # type: ignore[attr-defined]
    assert shape in ((2, 4, 6, 6), (2, 6, 6, 4))


def test_memory_kernels_read_and_write_what_stream_counts() -> None:
    """A copy moves two arrays, a triad three; a[i] = b[i] + 3 c[i] = 4 for ones."""
    kernels = dict(torch_cpu().memory())
    copy, triad = kernels["copy"](4000), kernels["triad"](4000)
    assert (copy.amount, triad.amount) == (8000, 12000)
    result = triad.run()
    assert isinstance(result, torch.Tensor)
    assert result.tolist() == [4.0] * 1000


def test_tensorflows_update_adds_in_place() -> None:
    update = dict(tensorflow_cpu().memory())["update"](4000)
    assert update.amount == 12000
    update.run()


def test_every_precision_has_both_kernels_and_memory_one_type() -> None:
    found = [(kernel, precision) for kernel, precision, _ in kernels_of(torch_cpu())]
    assert found == [
        (kernel, precision)
        for precision in ("fp32", "bf16", "fp16")
        for kernel in ("matrix product", "convolution")
    ] + [("copy", "fp32"), ("triad", "fp32")]


def test_arrays_are_four_times_the_last_cache() -> None:
    assert min(array_bytes(on_cpu=True)) >= 4 * (last_level_cache_bytes() or 0)
    assert min(array_bytes(on_cpu=True)) >= 64 * 2**20


def test_what_does_not_fit_in_memory_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak_timing, "available_bytes", lambda: 6 * 16 * 256**2)
    sizes = {kernel: len(makes) for kernel, _, makes in kernels_of(torch_cpu())}
    assert sizes == {"matrix product": 1, "convolution": 0, "copy": 0, "triad": 0}


class Clock:
    """Time that passes as works say."""

    def __init__(self) -> None:
        self.now = 0.0

    def work(self, amount: int, rate: float) -> Work:
        def run() -> None:
            self.now += amount / rate

        return Work(str(amount), amount, run)


def test_sizes_ascend_while_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 100 a second calls of 1, 2, 4 and 8 take 10 to 80 ms; 1000 would take 10 s."""
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    makes = [partial(clock.work, amount, 100.0) for amount in (1, 2, 4, 8, 1000)]
    found = list(sweep(makes, lambda: None, 5.0))
    assert [rates.work.amount for rates in found] == [1, 2, 4, 8]
    for rates in found:
        assert len(rates.rates) >= LEAST
        assert rates.rates == [pytest.approx(100.0)] * len(rates.rates)
    assert clock.now <= 5.0


def test_the_first_size_is_measured_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    (only,) = sweep([partial(clock.work, a, 1.0) for a in (10, 20)], lambda: None, 0.1)
    assert len(only.rates) == LEAST
