"""The processors of a node, by what the kernel tells of them."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Iterator
from pathlib import Path

from aiperf_hpc.system.description import Processors
from aiperf_hpc.system.memory import quota_cores
from aiperf_hpc.system.tools import (
    ROOT,
    AbsentError,
    Probe,
    cpus_of,
    number_of,
    output_of,
    text_of,
    text_or_none,
)

_CPUS = "sys/devices/system/cpu"
_IN_NAME = re.compile(r"@\s*([\d.]+)\s*GHz")
VECTORS = (
    "avx", "avx2", "fma", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16",
    "asimd", "asimdhp", "bf16", "sve", "sve2", "svebf16",
)  # fmt: skip
"""Names of sets of instructions for vectors and matrices, on x86 and Arm."""
_SUFFIXES = {"Data": "d", "Instruction": "i"}


def processors(root: Path = ROOT) -> Processors:
    """Return the processors of the machine whose ``/proc`` and ``/sys`` are below ``root``.

    Raises:
        OSError, ValueError: the kernel does not tell which there are.
    """
    online = cpus_of(text_of(root / _CPUS / "online"))
    probe = Probe(OSError, ValueError)
    read = probe.read
    model = read("model", lambda: _model(root))
    return Processors(
        model=model,
        architecture=platform.machine(),
        sockets=read("sockets", lambda: _groups(root, online, "package_cpus", "core_siblings")),
        cores=read("cores", lambda: _groups(root, online, "core_cpus", "thread_siblings")),
        threads=len(online),
        base_mhz=read("base_mhz", lambda: _base_mhz(root, model)),
        max_mhz=read("max_mhz", lambda: _max_mhz(root, online)),
        cache_bytes=read("cache_bytes", lambda: _cache_bytes(root, online)),
        quota_cores=read("quota_cores", lambda: quota_cores(root)),
        virtual=read("virtual", lambda: _virtual(root)),
        vectors=_vectors(root),
        absent=probe.absent,
    )


def _vectors(root: Path) -> tuple[str, ...]:
    """Return what the first processor has of ``VECTORS``."""
    told = next((value for name, value in _cpuinfo(root) if name in ("flags", "Features")), "")
    return tuple(name for name in VECTORS if name in told.split())


def _cpuinfo(root: Path) -> Iterator[tuple[str, str]]:
    for line in text_of(root / "proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        yield name.strip(), value.strip()


def _model(root: Path) -> str:
    """Return the name of the processor; the kernel leaves an Arm's to lscpu, which knows it."""
    for name, value in _cpuinfo(root):
        if name in ("model name", "cpu") and value:  # The latter is POWER's.
            return value
    return _model_by_lscpu()


def _model_by_lscpu() -> str:
    try:
        fields = json.loads(output_of("lscpu", "--json"))["lscpu"]
        said = [f["data"] for f in fields if f["field"] == "Model name:"]
    except (ValueError, LookupError, TypeError):
        raise AbsentError("lscpu did not print what it should") from None
    if not said or said[0] in (None, "-"):
        raise AbsentError("neither the kernel nor lscpu knows the name")
    return str(said[0])


def _groups(root: Path, online: list[int], name: str, older: str) -> int:
    """Return how many groups of logical CPUs share something, by the kernel's lists of them."""
    found = set()
    for cpu in online:
        folder = root / _CPUS / f"cpu{cpu}" / "topology"
        path = folder / f"{name}_list"
        found.add(text_of(path if path.exists() else folder / f"{older}_list"))
    return len(found)


def _base_mhz(root: Path, model: str | None) -> float:
    first = root / _CPUS / "cpu0"
    if said := text_or_none(first / "cpufreq/base_frequency"):
        return int(said) / 1000
    if (said := text_or_none(first / "acpi_cppc/nominal_freq")) and int(said):
        return float(said)
    if in_name := _IN_NAME.search(model or ""):
        return float(in_name[1]) * 1000
    raise AbsentError("neither the kernel nor the processor's name tells it")


def _max_mhz(root: Path, online: list[int]) -> float:
    found = []
    for cpu in online:
        path = root / _CPUS / f"cpu{cpu}" / "cpufreq/cpuinfo_max_freq"
        if path.exists():
            found.append(number_of(path) / 1000)
    if not found:
        raise AbsentError("the kernel does not set the clocks here, as in a virtual machine")
    return max(found)


def _cache_bytes(root: Path, online: list[int]) -> dict[str, int]:
    """Return the sum of all caches by kind; CPUs that share one tell of the same."""
    caches: dict[tuple[str, str], int] = {}
    for cpu in online:
        for index in sorted((root / _CPUS / f"cpu{cpu}" / "cache").glob("index*")):
            kind = _SUFFIXES.get(text_of(index / "type"), "")
            name = f"L{text_of(index / 'level')}{kind}"
            caches[name, text_of(index / "shared_cpu_list")] = _size(text_of(index / "size"))
    if not caches:
        raise AbsentError("the kernel tells of no caches")
    sums: dict[str, int] = {}
    for (name, _), size in caches.items():
        sums[name] = sums.get(name, 0) + size
    return dict(sorted(sums.items()))


def _size(text: str) -> int:
    return int(text[:-1]) * {"K": 2**10, "M": 2**20, "G": 2**30}[text[-1]]


def _virtual(root: Path) -> bool:
    """Return whether the processor says so (x86), or the kernel knows a hypervisor (others)."""
    if text_or_none(root / "sys/hypervisor/type") is not None:
        return True
    flags = [value.split() for name, value in _cpuinfo(root) if name == "flags"]
    if not flags:
        raise AbsentError("processors of this architecture do not tell")
    return "hypervisor" in flags[0]
