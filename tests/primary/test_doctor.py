"""The checks, remedies and verdict of `aiperf doctor`."""

from __future__ import annotations

import sys
import tomllib
from functools import partial
from importlib import metadata, util
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
from tests.support.nvml_library import H100, NvmlLibrary
from tests.support.powercap import powercap
from tests.support.present import present

from aiperf_hpc.cli import main
from aiperf_hpc.errors import SchedulerSilentError
from aiperf_hpc.extras import pip_install
from aiperf_hpc.primary import doctor
from aiperf_hpc.primary.doctor import PACKAGES, energy_checks, examine, readiness
from aiperf_hpc.primary.doctor_rows import Check
from aiperf_hpc.primary.launchers.slurm.client import SlurmClient
from aiperf_hpc.primary.launchers.slurm.jobs import Nodes
from aiperf_hpc.system.tools import AbsentError
from aiperf_hpc.telemetry.energy import rapl_zones

ROOT = Path(__file__).parents[2]
WRAPPER = "import sys\nfrom {}.cli import main\nsys.exit(main())\n"
"""A console script as pip writes it."""


def found(name: str) -> Check:
    (check,) = (check for check in examine(Path()) if check.name == name)
    return check


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder of one's own, as the doctor tries to write there, and without a scheduler."""
    monkeypatch.chdir(tmp_path)

    def silent(_: SlurmClient) -> list[Nodes]:
        raise SchedulerSilentError("sinfo: Could not establish a configuration source")

    monkeypatch.setattr(SlurmClient, "partitions", silent)


def test_missing_packages_have_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(util, "find_spec", lambda _: None)
    checks = {check.name: check for check in examine(Path())}
    declared = present(metadata.metadata("aiperf-hpc").get_all("Provides-Extra"))
    for _, name, package in PACKAGES:
        assert not checks[name].found
        assert checks[name].detail == "not installed"
        assert checks[name].remedy.startswith(package.remedy)
        if name == "horovod":
            assert "make horovod" in package.remedy
        else:
            extra = package.remedy.partition("'.[")[2].partition("]'")[0]
            assert extra in declared, package.remedy
    assert checks["an engine"].required
    assert not checks["an engine"].found
    assert (checks["nni"].area, checks["nni"].required) == ("NNI", False)
    assert checks["nni"].remedy.endswith("; no run needs it)")


def test_what_is_installed_is_named_with_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found("nni").detail == f"nni {metadata.version('nni')}"

    def unknown(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", unknown)
    assert found("nni").detail == "nni, of unknown version"


@pytest.mark.parametrize(
    ("version", "fits"), [("3.10.9", False), ("3.11.2", True), ("3.12.1", True), ("3.13.0", False)]
)
def test_supported_versions_of_python(
    version: str, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.python_version_tuple", lambda: version.split("."))
    assert found("python").found == fits


def test_a_controller_that_is_away_is_one_short_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    check = found("controller")
    assert check.detail == "does not respond: sinfo: Could not establish a configuration source"
    assert check.remedy == "set SLURM_CONF or use --launcher local"


def test_mpirun_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mpirun").touch()
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", "")
    assert found("MPI library").detail == str(tmp_path / "mpirun")


YES = Check("machine", "python", True, "", required=True)
NO_ENGINE = Check("framework", "an engine", False, "none", "pip it", required=True)
GPU = Check("accelerator", "NVIDIA", True, "H100")
FOR_CPUS = Check("framework", "torch", True, "torch 2.13.0+cpu")
FOR_GPUS = FOR_CPUS._replace(detail="torch 2.13.0")
SBATCH = Check("SLURM", "sbatch", True, "/usr/bin/sbatch")
NO_SBATCH = SBATCH._replace(found=False, detail="not on the PATH")
SILENT = Check("SLURM", "controller", False, "does not respond: x", "set it")
CONTROLLER = SILENT._replace(found=True)
START = "Start with `aiperf start --nodes 1 --hours 0.05`."


@pytest.mark.parametrize(
    ("checks", "said"),
    [
        (
            [YES, FOR_CPUS, NO_SBATCH],
            "Ready for local runs; not for SLURM (sbatch: not on the PATH) or GPUs (no accelerator "
            f"found). {START}",
        ),
        (
            [YES, GPU, FOR_GPUS, SBATCH, CONTROLLER],
            f"Ready for local runs, SLURM and GPUs. {START}",
        ),
        (
            [YES, FOR_GPUS, SBATCH, SILENT],
            "Ready for local runs; not for SLURM (controller: does not respond: x) or GPUs (no "
            "accelerator found). First: set it.",
        ),
        (
            [YES, GPU, FOR_CPUS, SBATCH, CONTROLLER],
            "Ready for local runs and SLURM; not for GPUs (the installed frameworks are CPU "
            f"builds). First: {pip_install('cuda')}, or PyTorch's build for your accelerator.",
        ),
        ([YES, NO_ENGINE, GPU], "Not ready for any run (an engine: none). First: pip it."),
    ],
)
def test_the_last_sentence_is_the_readiness(checks: list[Check], said: str) -> None:
    assert readiness(checks) == said


def test_the_doctor_ends_with_that_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("Ready for local runs")


def command(folder: Path, text: str) -> Path:
    """Make a program of our name in a folder."""
    folder.mkdir()
    program = folder / "aiperf"
    program.write_text(text)
    program.chmod(0o755)
    return program


def test_another_program_named_aiperf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = command(tmp_path / "ours", f"#!{sys.executable}\n{WRAPPER.format('aiperf_hpc.primary')}")
    theirs = command(tmp_path / "theirs", f"#!{sys.executable}\n{WRAPPER.format('aiperf')}")
    monkeypatch.setenv("PATH", f"{theirs.parent}:{ours.parent}")
    check = found("aiperf")
    assert (check.found, check.required) == (False, False)
    assert check.detail == f"{theirs} is another program of that name"
    assert check.remedy.startswith("use aiperf-hpc instead of aiperf")
    monkeypatch.setenv("PATH", f"{ours.parent}:{theirs.parent}")
    check = found("aiperf")
    assert (check.found, check.detail) == (True, str(ours))
    monkeypatch.setenv("PATH", str(tmp_path))
    check = found("aiperf")
    assert check.remedy == f"put {Path(sys.executable).parent} on the PATH"
    assert not check.found


def test_both_names_are_installed_as_one_command() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["scripts"]["aiperf-hpc"] == project["scripts"]["aiperf"]


def test_unreadable_energy_counters_have_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    NvmlLibrary([dict(H100), {}]).install(monkeypatch)

    def refused() -> NoReturn:
        raise AbsentError("energy_uj: Permission denied; root may let others read it")

    monkeypatch.setattr(doctor, "rapl_zones", refused)
    processors, accelerators = energy_checks()
    assert not processors.found
    assert processors.detail.startswith("energy_uj: Permission denied")
    assert processors.remedy.startswith("as root: chmod a+r /sys/class/powercap/")
    assert (accelerators.name, accelerators.found) == ("NVIDIA accelerators", False)
    assert accelerators.detail == "NVML: 1 of 2"


def test_counters_of_energy_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    powercap(tmp_path)
    monkeypatch.setattr(doctor, "rapl_zones", lambda: rapl_zones(tmp_path))
    (processors,) = energy_checks()
    assert processors.found
    assert processors.detail == "RAPL: package-0, package-0 dram, package-1, package-1 dram"


# Packages for CUDA: the metadata of TensorFlow 2.18's extra and of PyTorch 2.13 from its index

OF_TENSORFLOW = ("nvidia-cudnn-cu12", "nvidia-nccl-cu12", "nvidia-cublas-cu12")
OF_TORCH = ("nvidia_cudnn_cu13", "nvidia_nccl_cu13", "nvidia-cublas")


def environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *packages: str, driver: int | None = None
) -> list[Check]:
    """Return what is said of CUDA where packages are installed, and of a driver for some CUDA."""
    for name in packages:
        information = folder / f"{name.replace('-', '_')}-1.0.dist-info"
        information.mkdir(parents=True)
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\n")
    only = SimpleNamespace(distributions=partial(metadata.distributions, path=[str(folder)]))
    monkeypatch.setattr(doctor, "metadata", only)
    NvmlLibrary([dict(H100)], cuda=driver or 0, status=0 if driver else 9).install(monkeypatch)
    return [check for check in examine(Path()) if check.area == "CUDA"]


def test_conflicting_cuda_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (packages,) = environment(tmp_path / "site", monkeypatch, *OF_TENSORFLOW, *OF_TORCH)
    assert not packages.found
    assert packages.detail == (
        "nvidia-cudnn-cu12 and nvidia-cudnn-cu13 both write nvidia/cudnn; nvidia-nccl-cu12 and "
        "nvidia-nccl-cu13 both write nvidia/nccl"
    )
    assert packages.remedy == "create a new virtual environment for each of [cuda] and [torch]"
    said = readiness([YES, GPU, FOR_GPUS, SBATCH, CONTROLLER, packages])
    assert said.startswith("Ready for local runs and SLURM; not for GPUs (packages: nvidia-cudnn")
    assert said.endswith(f"First: {packages.remedy}.")


@pytest.mark.parametrize(
    ("packages", "driver", "fits"),
    [
        (OF_TORCH, 12080, False),
        (OF_TORCH, 13000, True),
        (OF_TENSORFLOW, 12000, True),
        (OF_TENSORFLOW, 11080, False),
        (OF_TENSORFLOW, 13000, True),
    ],
)
def test_a_driver_is_at_least_of_the_packages_major_version_of_cuda(
    packages: tuple[str, ...],
    driver: int,
    fits: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed, check = environment(tmp_path / "site", monkeypatch, *packages, driver=driver)
    major, oldest = ("13", "580") if packages is OF_TORCH else ("12", "525")
    assert (installed.found, check.found) == (True, fits)
    assert check.detail == (
        f"for CUDA {driver // 1000}.{driver % 1000 // 10}; the installed packages are for CUDA "
        f"{major}"
    )
    assert (f"driver {oldest} or later" in check.remedy) != fits
    said = readiness([YES, GPU, FOR_GPUS, SBATCH, CONTROLLER, check])
    assert ("not for GPUs (driver: for CUDA" in said) != fits


def test_without_cuda_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment(tmp_path / "site", monkeypatch, "nvidia-ml-py", driver=12040) == []
