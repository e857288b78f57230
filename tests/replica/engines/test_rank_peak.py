"""What a rank measures of its device before it trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from aiperf_hpc.config import RunConfig, validate
from aiperf_hpc.replica.engines import rank_peak as module
from aiperf_hpc.replica.engines.peak_timing import Rates
from aiperf_hpc.replica.engines.rank_peak import rank_peak
from aiperf_hpc.trial import DevicePeak

Sections = dict[str, dict[str, object]]


def config(sections: Sections | None = None) -> RunConfig:
    digits: Sections = {"dataset": {"name": "digits"}, "training": {"precision": "fp32"}}
    quick: Sections = {"peaks": {"at_start_seconds": 0.002}}
    return validate({**digits, **quick, **(sections or {})}, "here")


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def measured(sections: Sections | None = None) -> DevicePeak:
    engine: Sections = {"engine": {"name": "torch", "device": "cpu"}}
    found = rank_peak(config({**engine, **(sections or {})}), 1, 0)
    assert found is not None
    return found


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_ranks_own_device_is_measured_in_the_precision_of_the_training(precision: str) -> None:
    found = measured({"training": {"precision": precision}})
    assert (found.device, found.threads, found.precision) == ("cpu", 1, precision)
    assert set(found.rates) == {"matrix product", "convolution"}
    assert found.absent == {}
    assert found.seconds > 0.0


def test_tensorflows_device_is_measured_too() -> None:
    pytest.importorskip("tensorflow")
    found = rank_peak(config(), 1, 0)
    assert found is not None
    assert found.device == "cpu:0"
    assert set(found.rates) == {"matrix product", "convolution"}


@pytest.mark.parametrize(
    "sections", [{"peaks": {"at_start_seconds": 0.0}}, {"engine": {"name": "simulated"}}]
)
def test_nothing_is_measured_where_it_is_not_asked_for_or_nothing_is_computed(
    sections: Sections,
) -> None:
    assert rank_peak(config(sections), 1, 0) is None


def test_convolutions_are_by_kernels_that_are_tuned_as_a_trainings_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a training could be faster than its device's peak. Afterwards all is as it was."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    tuned: list[bool] = []

    def sweep(makes: Sequence[Callable[[], Any]], finish: object, seconds: float) -> list[Rates]:
        tuned.append(torch.backends.cudnn.benchmark)
        return [Rates(makes[0](), [1.0], 1.0)]

    monkeypatch.setattr(module, "sweep", sweep)
    measured()
    assert tuned == [True, True]
    assert not torch.backends.cudnn.benchmark


def test_what_has_no_rate_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def sweep(makes: Sequence[Callable[[], Any]], finish: object, seconds: float) -> list[Rates]:
        if len(makes) > len(module.KERNELS) and makes[0]().size.startswith("256"):
            return []
        raise RuntimeError("no such kernel\nin this build")

    monkeypatch.setattr(module, "sweep", sweep)
    found = measured()
    assert found.rates == {}
    assert found.absent == {
        "matrix product": "too little memory is free",
        "convolution": "no such kernel",
    }


def test_precision_is_afterwards_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's kernels switch TF32 as they need it."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)

    def sweep(makes: Sequence[Callable[[], Any]], finish: object, seconds: float) -> list[Rates]:
        torch.backends.cudnn.allow_tf32 = False
        return [Rates(makes[0](), [1.0], 1.0)]

    monkeypatch.setattr(module, "sweep", sweep)
    assert measured().rates == {"matrix product": 1.0, "convolution": 1.0}
    assert torch.backends.cudnn.allow_tf32
