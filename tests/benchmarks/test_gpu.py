"""The measurements of one GPU, as far as a CPU can tell: `benchmarks/gpu.py`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from aiperf_hpc.system.software import KERNEL_CACHES

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "benchmarks" / "gpu.py"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Give the program as a module."""
    monkeypatch.syspath_prepend(PROGRAM.parent)
    import gpu as module  # type: ignore[import-not-found]

    yield module
    for name in ("gpu", "gpu_report", "side_by_side"):
        sys.modules.pop(name, None)


def run(
    folder: Path, *arguments: str, path: Path | None = None
) -> subprocess.CompletedProcess[str]:
    paths = [str(each) for each in (path, ROOT / "src") if each is not None]
    return subprocess.run(
        [sys.executable, PROGRAM, folder, "--dry-cpu", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def rows(folder: Path) -> list[dict[str, object]]:
    lines = (folder / "figures.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_all_packages_that_are_missing_are_named_at_once(tmp_path: Path) -> None:
    bare = [sys.executable, "-S", str(PROGRAM), str(tmp_path / "figures")]  # Without site-packages.
    done = subprocess.run(bare, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    for name in ("torch", "numpy", "msgspec", "pydantic", "google-crc32c", "optuna"):
        assert name in line
    assert not (tmp_path / "figures").exists()


def test_a_checkout_that_is_not_on_the_path_is_named(tmp_path: Path) -> None:
    code = """
import importlib.util, runpy, sys
real = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == "aiperf_hpc" else real(name)
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    command = [sys.executable, "-c", code, str(PROGRAM), str(tmp_path / "figures")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = "gpu.py: aiperf_hpc cannot be imported; in a checkout set PYTHONPATH=src\n"
    assert (done.returncode, done.stderr) == (1, said)


def test_a_figure_that_was_measured_is_not_measured_again(tmp_path: Path) -> None:
    """A process that was killed while it wrote a figure left part of the line."""
    assert run(tmp_path, "--only", "peaks").returncode == 1  # The other sections are not measured.
    found = rows(tmp_path)
    names = [row["what"] for row in found if "what" in row]
    assert names == ["matrix", "memory", "convolution", "all-reduce"]
    kept = [
        row for row in found if row.get("what") in (None, "matrix", "memory") and "ended" not in row
    ]
    whole = "".join(json.dumps(row) + "\n" for row in kept)
    (tmp_path / "figures.jsonl").write_text(whole + '{"section": "peaks", "wh', "utf-8")
    run(tmp_path, "--only", "peaks")
    again = rows(tmp_path)
    assert again[: len(kept)] == kept
    assert [row["what"] for row in again if "what" in row] == names
    assert again[-1]["ended"] == ""


def test_figures_of_another_machine_are_refused(tmp_path: Path) -> None:
    whole = '{"where": "PyTorch 1.0, a GPU"}\n'
    (tmp_path / "figures.jsonl").write_text(whole, "utf-8")
    done = run(tmp_path)
    assert done.returncode == 2
    assert "is of PyTorch 1.0, a GPU, and this is PyTorch" in done.stderr
    assert (tmp_path / "figures.jsonl").read_text("utf-8") == whole


def test_time_is_counted_from_the_start_and_before_pytorch_is_imported(tmp_path: Path) -> None:
    stub = tmp_path / "stub"
    stub.mkdir()
    (stub / "torch.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')", "utf-8")
    done = run(tmp_path / "figures", "--within", "20", path=stub)
    assert done.returncode == 1
    assert "peaks: needs more than is left of 20 s" in done.stderr
    assert not (tmp_path / "imported").exists()


def test_no_section_begins_that_would_end_too_late(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = []

    def section(name: str, options: object, seconds: float) -> str:
        begun.append(name)
        return ""

    monkeypatch.setattr(gpu, "run_section", section)
    monkeypatch.setattr(gpu, "STARTED", time.monotonic() - 500.0)
    monkeypatch.setattr(sys, "argv", ["gpu.py", str(tmp_path), "--within", "590"])
    assert gpu.main() == 1
    assert begun == ["peaks", "host"]  # 90 s are left for each: none of them took any here.


def test_all_sections_fit_into_the_time_that_a_machine_is_lent(gpu: ModuleType) -> None:
    assert sum(section.limit for section in gpu.SECTIONS.values()) <= 27 * 60
    assert all(0 < section.predicted < section.limit < 600 for section in gpu.SECTIONS.values())


def test_every_section_has_a_measurement_and_a_table(gpu: ModuleType) -> None:
    from gpu_report import TABLES  # type: ignore[import-not-found]
    from gpu_sections import MEASUREMENTS  # type: ignore[import-not-found]

    assert list(gpu.SECTIONS) == list(MEASUREMENTS) == list(TABLES)


def test_compiled_kernels_are_kept_but_for_sections_that_measure_compilation(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in KERNEL_CACHES:
        monkeypatch.setenv(name, "elsewhere")
    variable, inside = next(iter(KERNEL_CACHES.items()))
    shared = tmp_path / "kernels" / inside
    with gpu.kernel_caches(tmp_path, gpu.SECTIONS["448"]):
        assert os.environ[variable] == str(shared)
        shared.mkdir()
        (shared / "kernel").touch()
    with gpu.kernel_caches(tmp_path, gpu.SECTIONS["kernels"]):
        own = Path(os.environ[variable])
        assert (own / "kernel").exists()
        (own / "compiled here").touch()
    assert [file.name for file in shared.iterdir()] == ["kernel"]


def test_the_steady_rate_is_of_steps_within_epochs_of_the_first_network(gpu: ModuleType) -> None:
    from gpu_sections import steady_rate

    def progress(mono: float, trial: str, epoch: int, samples: int) -> dict[str, object]:
        event = {"type": "progress", "trial": trial, "epoch": epoch, "train_samples": samples}
        return {"mono": mono, "event": event}

    records = [
        progress(9.0, "r0-t1", 1, 100),  # An epoch's first record: its start is not known.
        progress(10.0, "r0-t1", 1, 500),
        {"mono": 10.5, "event": {"type": "heartbeat"}},
        progress(12.0, "r0-t1", 1, 1000),
        progress(20.0, "r0-t1", 2, 1000),
        progress(21.0, "r0-t1", 2, 300),
        progress(30.0, "r0-t2", 1, 1000),
        progress(31.0, "r0-t2", 1, 9000),
    ]
    assert steady_rate(records, {"r0-t1"}) == (500 + 1000 + 300) / (1.0 + 2.0 + 1.0)
    assert steady_rate(records, {"r0-t3"}) is None


def test_the_engine_is_compared_with_the_best_peer_and_the_eager_one(gpu: ModuleType) -> None:
    from gpu_report import report

    def turns(what: str, *images: float) -> list[dict[str, object]]:
        return [
            {"what": what, "number": number, "images": rate, "joules": 0.5}
            for number, rate in enumerate(images)
        ]

    rows = [
        *turns("engine", 110.0, 99.0, 120.0),
        *turns("eager", 100.0, 90.0, 96.0),
        *turns("torch.compile", 110.0, 110.0),  # The last turn is not measured yet.
    ]
    lines = list(report({name: rows if name == "448" else [] for name in gpu.SECTIONS}))
    assert "engine over torch.compile: 0.95 (0.90 to 1.00); goal 1" in "\n".join(lines)
    assert "engine over eager: 1.10 (1.10 to 1.25); goal 1.15" in "\n".join(lines)
    assert "| engine | 110.0 (99.0 to 120.0) | 0.5 |  |  |  |" in lines
