"""`aiperf peaks`: a real short measurement, its file, and what cannot be measured."""

from __future__ import annotations

import json
import sys
from importlib import util
from pathlib import Path

import pytest
from tests.support.present import present
from tests.support.refusals import refused_line

from aiperf_hpc.cli import main
from aiperf_hpc.errors import UsageError
from aiperf_hpc.primary.peaks import measure as measuring
from aiperf_hpc.primary.peaks.measure import Plan, lines, measure, plan
from aiperf_hpc.run.peaks import AllReduce, Device, MeasuredRate, NotMeasured, Peaks, Storage, Sweep


def reading(size: str, median: float, *, best: float = 0.0, worst: float = 0.0) -> MeasuredRate:
    ends = {"best": best or median, "worst": worst or median}
    return MeasuredRate(size=size, amount=1, median=median, **ends, repetitions=3)


def sweep(kernel: str, precision: str, *medians: float, device: str = "cpu") -> Sweep:
    readings = tuple(reading(f"size {number}", m) for number, m in enumerate(medians))
    return Sweep(
        engine="torch", device=device, kernel=kernel, precision=precision, readings=readings
    )


def peaks(**changes: object) -> Peaks:
    values: dict[str, object] = {
        "utc": 1.0, "seconds": 2.0, "quick": False, "host": "node", "cpu": "Example CPU",
        "cores": 4, "memory_bytes": 2**34, "versions": {},
    }  # fmt: skip
    return Peaks.model_validate(values | changes)


COPIED = peaks(sweeps=(sweep("copy", "fp32", 1.0),))


def test_the_peak_is_the_size_with_the_highest_median_and_the_spread_is_of_it() -> None:
    readings = reading("a", 10, best=30, worst=9), reading("b", 20, best=25, worst=17)
    found = sweep("copy", "fp32", 1.0).model_copy(update={"readings": readings})
    assert found.peak.size == "b"
    assert found.peak.spread == pytest.approx((25 - 17) / 20)


def test_a_rate_that_still_rises_when_the_time_is_over_is_told() -> None:
    cut = sweep("matrix product", "fp32", 1.0, 2.0).model_copy(update={"left_out": 3})
    assert cut.rising
    assert not sweep("matrix product", "fp32", 1.0, 2.0).rising
    fallen = sweep("matrix product", "fp32", 2.0, 1.0).model_copy(update={"left_out": 3})
    assert not fallen.rising
    assert not sweep("copy", "fp32", 1.0, 2.0).model_copy(update={"left_out": 3}).rising
    assert any(line.endswith("size 1; no time for more") for line in lines(peaks(sweeps=(cut,))))


def test_a_device_and_a_kind_of_kernel_are_told_apart() -> None:
    whole = peaks(
        devices=(
            Device(engine="torch", name="cpu", model="c", threads=4),
            Device(engine="torch", name="cuda:0", model="g", threads=None),
        ),
        sweeps=(
            sweep("matrix product", "fp32", 1.0),
            sweep("copy", "fp32", 2.0),
            sweep("convolution", "bf16", 3.0, device="cuda:0"),
        ),
    )
    assert [s.kernel for s in whole.products("torch", accelerator=False)] == ["matrix product"]
    assert [s.kernel for s in whole.memory("torch", accelerator=False)] == ["copy"]
    assert [s.precision for s in whole.products("torch", accelerator=True)] == ["bf16"]
    assert list(whole.products("tensorflow", accelerator=False)) == []


def test_the_table_has_all_parts_and_says_what_is_missing() -> None:
    whole = peaks(
        load=9.0,
        devices=(Device(engine="torch", name="cpu", model="Example CPU", threads=4),),
        sweeps=(sweep("matrix product", "fp32", 5e10, 1e11), sweep("copy", "fp32", 2e10)),
        allreduce=(
            AllReduce(
                collective="mpi", ranks=2, memory="cpu", dtype="float32",
                reading=reading("40 MB", 1.5e9),
            ),
        ),
        storage=Storage(
            folder="/data", file_system="ext4", files="its own", cache="in use",
            readings=(reading("1 reader", 1e9), reading("4 readers", 4e8)),
        ),
        not_measured=(NotMeasured(what="engine tensorflow", reason="not installed"),),
    )  # fmt: skip
    text = list(lines(whole))
    assert text[0] == "node: Example CPU, 4 cores, 16 GiB"
    assert text[2].startswith("warning: the load was 9.0 on 4 cores before")
    assert text[3] == "torch cpu: Example CPU, 4 threads"
    rows = {line[:46].strip(): line[46:].split() for line in text[6:]}
    assert rows["torch cpu, matrix product, fp32"][:2] == ["100", "GOPS"]
    assert rows["torch cpu, matrix product, fp32"][-2:] == ["size", "1"]
    assert rows["torch cpu, copy, fp32"][:2] == ["20.0", "GB/s"]
    assert rows["all-reduce, mpi, 2 ranks, cpu, float32"][:2] == ["1.50", "GB/s"]
    assert rows["read, ext4"][:2] == ["1.00", "GB/s"]
    assert "the rate may be that of memory" in text[-2]
    assert text[-1] == "not measured: engine tensorflow: not installed"


def test_a_file_is_read_back_and_of_several_the_fastest_counts(tmp_path: Path) -> None:
    path = tmp_path / "peaks.json"
    slow, fast = peaks(utc=1.0, rates={"matrix product": 1e9}), peaks(utc=2.0, rates={"x": 2e9})
    path.write_text(fast.model_dump_json(), "utf-8")
    assert Peaks.read(path) == fast
    path.write_text(f"[{slow.model_dump_json()},{fast.model_dump_json()}]", "utf-8")
    assert Peaks.read(path) == fast


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is not a file of `aiperf peaks`: invalid JSON"),
        ("[]", "is not a file of `aiperf peaks`: value should have at least 1 item"),
        ("{}", "is not a file of `aiperf peaks`: 0.utc: is missing"),
        (COPIED.model_dump_json().replace('"cores":4', '"cores":"x"'), "0.cores: "),
        (
            COPIED.model_dump_json().replace('"best":1.0', '"best":0.0'),
            "0.sweeps.0.readings.0.best: should be greater than 0",
        ),
    ],
)
def test_what_is_no_file_of_peaks_is_one_line(content: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "peaks.json"
    path.write_text(content, "utf-8")
    with pytest.raises(UsageError) as error:
        Peaks.read(path)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    with pytest.raises(UsageError, match=r"No such file or directory; `aiperf peaks --out .* one"):
        Peaks.read(tmp_path / "none.json")


def test_a_quick_measurement_of_little_effort(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Real processes: each size has its least number of repetitions."""
    monkeypatch.setattr(measuring, "QUICK_KERNEL_SECONDS", 0.05)
    out = tmp_path / "new" / "out"
    assert main(["peaks", "--quick", "--engine", "torch", "--out", str(out), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [path.name for path in out.iterdir()] == ["peaks.json"]
    found = Peaks.read(out / "peaks.json")
    assert json.loads(found.model_dump_json()) == printed
    assert found.quick
    assert {s.engine for s in found.sweeps} == {"torch"}
    cpu = {(s.kernel, s.precision): s.peak for s in found.sweeps if s.device == "cpu"}
    kernels = ("matrix product", "convolution")
    assert cpu.keys() >= {(k, p) for k in kernels for p in ("fp32", "bf16")}
    assert cpu.keys() >= {("copy", "fp32"), ("triad", "fp32")}
    for peak in cpu.values():
        assert 0 < peak.worst <= peak.median <= peak.best
        assert peak.repetitions >= 3
    assert found.rates["torch cpu matrix product fp32"] == cpu["matrix product", "fp32"].median
    assert [device.threads for device in found.devices if device.name == "cpu"] == [found.cores]
    (reduced,) = {a.collective for a in found.allreduce}
    assert found.allreduce[0].ranks >= 2
    assert present(found.storage).folder == str(out)
    reasons = {m.what: m.reason for m in found.not_measured}
    assert reasons["engine tensorflow"] in ("another engine was requested", "not installed")
    others = {"all-reduce by mpi", "all-reduce by torch"} - {f"all-reduce by {reduced}"}
    for other in others:
        assert reduced in reasons[other]


def test_failures_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine whose process fails, no collective, and a folder with nothing to read."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    monkeypatch.setattr(measuring, "COLLECTIVES", {})
    found = measure(Plan(("torch",), True, tmp_path, None), tmp_path)
    reasons = {m.what: m.reason for m in found.not_measured}
    assert reasons["engine torch"] == "its process failed: it ended with status 1"
    assert reasons["storage"].startswith("the folder has 0 B in files of at least 4 MiB")
    assert (found.sweeps, found.allreduce, found.storage) == ((), (), None)


def test_without_a_framework_nothing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(util, "find_spec", lambda _: None)
    asked = plan(None, quick=True, data=tmp_path, ranks=None)
    assert asked.engines == ()
    what = {m.what for m in measure(asked, tmp_path).not_measured}
    assert what >= {"engine torch", "engine tensorflow", "all-reduce by mpi", "storage"}
    with pytest.raises(UsageError, match="--engine torch: needs the package 'torch': "):
        plan("torch", quick=True, data=None, ranks=None)


def test_invalid_requests(tmp_path: Path) -> None:
    out = ("--out", tmp_path / "out")
    assert "--engine jax: known are" in refused_line("peaks", "--engine", "jax", *out)
    assert "--ranks 1: at least two" in refused_line("peaks", "--ranks", 1, *out)
    assert "no such folder" in refused_line("peaks", "--data", tmp_path / "gone", *out)
    (tmp_path / "file").touch()
    assert "is a file" in refused_line("peaks", "--out", tmp_path / "file" / "out")
    assert not (tmp_path / "out").exists()
