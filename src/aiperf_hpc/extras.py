"""Optional packages: the settings that need them and the commands that install them."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from aiperf_hpc import __version__
from aiperf_hpc.config import RunConfig
from aiperf_hpc.config.sections import is_installed


def pip_install(*extras: str) -> str:
    """Return the command that adds extras to this installation, and its working directory.

    The package is not on an index; it is installed from a checkout or a wheel. If neither is at its
    recorded path, the command has the name of a wheel.
    """
    source = _source()
    from_checkout = source is not None and source.is_dir()
    what = "." if from_checkout else source or f"aiperf_hpc-{__version__}-py3-none-any.whl"
    place = f" in {source}" if from_checkout else ""
    return f"{_pip()} install '{what}[{','.join(extras)}]'{place}"


def _source() -> Path | None:
    """Return the checkout or wheel that this package was installed from, if it still exists."""
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / "pyproject.toml").exists():
        return checkout
    recorded = _recorded_source()
    return recorded if recorded is not None and recorded.exists() else None


def _recorded_source() -> Path | None:
    """Return the source of this package as recorded by pip (PEP 610)."""
    found = next(iter(metadata.distributions(name="aiperf-hpc")), None)
    record = None if found is None else found.read_text("direct_url.json")
    address = urlsplit(json.loads(record)["url"] if record else "")
    return Path(unquote(address.path)) if address.scheme == "file" else None


def _pip() -> str:
    """Return the command for this Python's pip: ``pip`` alone if the shell finds the same one."""
    found = shutil.which("pip")
    here = found is not None and Path(found).parent == Path(sys.executable).parent
    return "pip" if here else f"{sys.executable} -m pip"


class Package(NamedTuple):
    """Import name of a package, and the remedy if it is missing."""

    package: str
    remedy: str

    @property
    def installed(self) -> bool:
        """Whether the package can be imported, checked without importing it."""
        return is_installed(self.package)


ENGINES = {
    "tensorflow": Package("tensorflow", f"{pip_install('cpu')}, or [cuda]"),
    "torch": Package("torch", f"{pip_install('torch')}; README, Frameworks"),
}
COLLECTIVES = {
    "mpi": Package("mpi4py", pip_install("mpi")),
    "torch": Package("torch", pip_install("torch")),
    "horovod": Package("horovod", "build it with `make horovod`"),
}
NPU = Package("torch_npu", "install Huawei's build for this version of PyTorch")
SIMULATION = Package("greenlet", pip_install("simulate"))
DETECTION = Package("pycocotools", pip_install("detection"))
HDF5 = Package("h5py", pip_install("hdf5"))
PARQUET = Package("pyarrow", pip_install("parquet"))
NNI = Package("nni", pip_install("nni"))


def lacking(needed: Iterable[tuple[str, Package]]) -> list[str]:
    """Return a line with the remedy for each package missing from this environment.

    Args:
        needed: pairs of the setting that needs a package, and the package.
    """
    return [
        f"{what} needs the package '{package.package}': {package.remedy}"
        for what, package in needed
        if not package.installed
    ]


def needed_by(config: RunConfig) -> Iterator[tuple[str, Package]]:
    """Yield the packages for a run's engine, device and collective, each with the setting."""
    engine, replica = config.engine, config.replica
    if engine.name in ENGINES:
        yield f"engine '{engine.name}'", ENGINES[engine.name]
    if engine.device == "npu":
        yield "engine.device=npu", NPU
    if replica.ranks > 1 and replica.collective != "auto":
        yield f"collective '{replica.collective}'", COLLECTIVES[replica.collective]
