"""The kernel's view of a node: processors, memory, containers, network ports, file systems, disks.

Network ports are interfaces, and RDMA adapters (InfiniBand and others). Mounts are read from
``/proc/self/mountinfo`` (proc(5)).
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from aiperf_hpc.errors import raising
from aiperf_hpc.host.machine import control_groups
from aiperf_hpc.system.description import (
    Disk,
    FileSystem,
    Memory,
    NetworkPort,
    NumaNode,
    OperatingSystem,
    Processors,
)
from aiperf_hpc.system.software import SECRET
from aiperf_hpc.system.tools import (
    ROOT,
    AbsentError,
    Probe,
    entries,
    number_of,
    numbers_in,
    output_of,
    text_of,
    text_or_none,
)

_SECTOR = 512
"""Bytes per sector in ``/sys/block``, regardless of the disk's sector size."""
_NO_DISK = re.compile(r"(loop|ram|zram|sr|fd|dm-|md|nbd)\d+")
_LAYERS = ("lowerdir=", "upperdir=", "workdir=")
"""Mount options of a container's root with long lists of folders."""


def file_systems(folders: Mapping[str, Path], root: Path = ROOT) -> tuple[FileSystem, ...]:
    """Return the file system of each folder, given by its use. Raises OSError and ValueError."""
    return tuple(_file_system(use, folder, root) for use, folder in folders.items())


def disks(root: Path = ROOT) -> Iterator[Disk]:
    """Yield the physical disks, and the virtual disks of a virtual machine."""
    for folder in entries(root / "sys/block"):
        size = number_of(folder / "size") * _SECTOR
        if size and not _NO_DISK.fullmatch(folder.name):
            yield Disk(
                name=folder.name,
                model=text_or_none(folder / "device/model"),
                total_bytes=size,
                rotational=text_of(folder / "queue/rotational") == "1",
            )


def _file_system(use: str, folder: Path, root: Path) -> FileSystem:
    folder = Path(os.path.realpath(folder))
    mount = mount_of(folder, root)
    probe = Probe(OSError)
    return FileSystem(
        use=use,
        path=str(folder),
        mount_point=mount.point,
        type=mount.type,
        source=mount.source,
        options=tuple(o for o in mount.options if not (o.startswith(_LAYERS) or SECRET.search(o))),
        total_bytes=probe.read("total_bytes", lambda: _capacity(folder)),
        absent=probe.absent,
    )


def _capacity(folder: Path) -> int:
    """Return the size in bytes of the file system of ``folder``, which need not exist yet."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    values = os.statvfs(there)
    return values.f_blocks * values.f_frsize


_ESCAPED = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """One mount."""

    folder: str
    """Folder within the file system that is mounted."""
    point: str
    options: tuple[str, ...]
    """Options of the mount, then of the file system."""
    type: str
    source: str


def mounts(root: Path = ROOT) -> Iterator[Mount]:
    """Yield all mounts visible to the process, in order. Raises OSError and ValueError."""
    for line in text_of(root / "proc/self/mountinfo").splitlines():
        # A variable number of fields precedes the dash.
        mount, _, file_system = line.partition(" - ")
        _, _, _, folder, point, own, *_ = map(_plain, mount.split(" "))
        kind, source, others = map(_plain, file_system.split(" ", 2))
        options = tuple(dict.fromkeys([*own.split(","), *others.split(",")]))
        yield Mount(folder, point, options, kind, source)


def mount_of(folder: Path, root: Path = ROOT) -> Mount:
    """Return the mount of a folder: the deepest mount point, and the last mount at that point.

    Raises:
        OSError, ValueError: the kernel does not report it.
    """
    found = [mount for mount in mounts(root) if folder.is_relative_to(mount.point)]
    if not found:
        raise ValueError(f"no mount holds {folder}")
    return max(enumerate(found), key=lambda each: (len(Path(each[1].point).parts), each[0]))[1]


def known_mount_of(folder: Path, root: Path = ROOT) -> Mount:
    """Return the mount of a folder, or one of type ``unknown`` if the kernel reports none."""
    try:
        return mount_of(folder, root)
    except (OSError, ValueError):
        return Mount("/", "/", (), "unknown", "")


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), text)


_CPUS = "sys/devices/system/cpu"
_IN_NAME = re.compile(r"@\s*([\d.]+)\s*GHz")
VECTORS = (
    "avx", "avx2", "fma", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16",
    "asimd", "asimdhp", "bf16", "sve", "sve2", "svebf16",
)  # fmt: skip
"""Names of vector and matrix instruction sets on x86 and Arm."""
_SUFFIXES = {"Data": "d", "Instruction": "i"}


def processors(root: Path = ROOT) -> Processors:
    """Return the processors of the machine whose ``/proc`` and ``/sys`` are below ``root``.

    Raises:
        OSError, ValueError: the kernel does not report them.
    """
    online = numbers_in(text_of(root / _CPUS / "online"))
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
    """Return the instruction sets in ``VECTORS`` that the first processor supports."""
    told = next((value for name, value in _cpuinfo(root) if name in ("flags", "Features")), "")
    return tuple(name for name in VECTORS if name in told.split())


def _cpuinfo(root: Path) -> Iterator[tuple[str, str]]:
    for line in text_of(root / "proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        yield name.strip(), value.strip()


def _model(root: Path) -> str:
    """Return the name of the processor, on Arm from lscpu because the kernel does not report it."""
    for name, value in _cpuinfo(root):
        if name in ("model name", "cpu") and value:  # "cpu" is for POWER.
            return value
    return _model_by_lscpu()


def _model_by_lscpu() -> str:
    unexpected = AbsentError("lscpu printed unexpected output")
    with raising(unexpected, ValueError, LookupError, TypeError):
        fields = json.loads(output_of("lscpu", "--json"))["lscpu"]
        said = [f["data"] for f in fields if f["field"] == "Model name:"]
    if not said or said[0] in (None, "-"):
        raise AbsentError("neither the kernel nor lscpu knows the name")
    return str(said[0])


def _groups(root: Path, online: list[int], name: str, older: str) -> int:
    """Return the number of groups of logical CPUs with the same list in the kernel's topology."""
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
    raise AbsentError("neither the kernel nor the processor's name states it")


def _max_mhz(root: Path, online: list[int]) -> float:
    paths = (root / _CPUS / f"cpu{cpu}" / "cpufreq/cpuinfo_max_freq" for cpu in online)
    found = [number_of(path) / 1000 for path in paths if path.exists()]
    if not found:
        raise AbsentError("the kernel does not set the clocks here, as in a virtual machine")
    return max(found)


def _cache_bytes(root: Path, online: list[int]) -> dict[str, int]:
    """Return the total cache size in bytes by kind; a cache shared by several CPUs counts once."""
    caches: dict[tuple[str, str], int] = {}
    for cpu in online:
        for index in sorted((root / _CPUS / f"cpu{cpu}" / "cache").glob("index*")):
            kind = _SUFFIXES.get(text_of(index / "type"), "")
            name = f"L{text_of(index / 'level')}{kind}"
            caches[name, text_of(index / "shared_cpu_list")] = _cache_size(text_of(index / "size"))
    if not caches:
        raise AbsentError("the kernel reports no caches")
    sums: dict[str, int] = {}
    for (name, _), size in caches.items():
        sums[name] = sums.get(name, 0) + size
    return dict(sorted(sums.items()))


def _cache_size(text: str) -> int:
    return int(text[:-1]) * {"K": 2**10, "M": 2**20, "G": 2**30}[text[-1]]


def _virtual(root: Path) -> bool:
    """Return whether the processor (x86) or the kernel (others) reports a hypervisor."""
    if text_or_none(root / "sys/hypervisor/type") is not None:
        return True
    flags = [value.split() for name, value in _cpuinfo(root) if name == "flags"]
    if not flags:
        raise AbsentError("processors of this architecture do not report it")
    return "hypervisor" in flags[0]


_KIB = re.compile(r"(\w+):\s*(\d+) kB")
_NODE = re.compile(r"node(\d+)")


def memory(root: Path = ROOT) -> Memory:
    """Return the memory of the machine whose ``/proc`` and ``/sys`` are below ``root``.

    Raises:
        OSError, KeyError: the kernel does not report its size.
    """
    sizes = _sizes(root / "proc/meminfo")
    probe = Probe(OSError, ValueError)
    return Memory(
        total_bytes=sizes["MemTotal"],
        swap_bytes=sizes.get("SwapTotal", 0),
        limit_bytes=probe.read("limit_bytes", lambda: memory_limit(root)),
        numa=probe.read("numa", lambda: tuple(_numa(root))) or (),
        absent=probe.absent,
    )


def _sizes(path: Path) -> dict[str, int]:
    """Return the values of a ``meminfo`` file in bytes."""
    return {name: int(size) * 2**10 for name, size in _KIB.findall(text_of(path))}


def _numa(root: Path) -> Iterator[NumaNode]:
    found = []
    for folder in entries(root / "sys/devices/system/node"):
        if number := _NODE.fullmatch(folder.name):
            size = _sizes(folder / "meminfo").get("MemTotal")
            cpus = text_of(folder / "cpulist")
            found.append(NumaNode(number=int(number[1]), cpus=cpus, memory_bytes=size or None))
    if not found:
        raise AbsentError("the kernel reports no NUMA nodes")
    yield from sorted(found, key=lambda node: node.number)


_UNLIMITED = 2**60
"""Limits in bytes from this value on mean no limit in the older interface (cgroup v1)."""


def memory_limit(root: Path = ROOT) -> int | None:
    """Return the lowest memory limit in bytes, or None if there is none."""
    limits = [
        *_limits(root, "", "memory.max", lambda text: float(text.partition(" ")[0])),
        *_limits(root, "memory", "memory.limit_in_bytes", float),
    ]
    return int(min(limits)) if limits and min(limits) < _UNLIMITED else None


def quota_cores(root: Path = ROOT) -> float | None:
    """Return the CPU quota in cores, or None if there is none."""
    return min([*_limits(root, "", "cpu.max", _share), *_older_quotas(root)], default=None)


def _older_quotas(root: Path) -> Iterator[float]:
    for folder in control_groups(root, "cpu"):
        quota = text_or_none(folder / "cpu.cfs_quota_us")
        period = text_or_none(folder / "cpu.cfs_period_us")
        if quota and period and int(quota) > 0:
            yield int(quota) / int(period)


def _share(text: str) -> float:
    quota, period = text.split()
    return int(quota) / int(period)


def _limits(
    root: Path, controller: str, name: str, read: Callable[[str], float]
) -> Iterator[float]:
    """Yield the limits of the control groups, except ``max``."""
    for folder in control_groups(root, controller):
        said = text_or_none(folder / name)
        if said and not said.startswith("max"):
            yield read(said)


_DMI = "sys/class/dmi/id"
_IMAGES = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")
"""Variables with the path of the image in Apptainer, and in Singularity, its earlier name."""


def operating_system(
    root: Path = ROOT, environment: Mapping[str, str] = os.environ
) -> OperatingSystem:
    """Return the operating system of the machine whose files are below ``root``."""
    probe = Probe(OSError)
    read = probe.read
    return OperatingSystem(
        name=read("name", lambda: _name(root)),
        kernel=platform.release(),
        container=read("container", lambda: container(root, environment)),
        container_image=read("container_image", lambda: _image(environment)),
        hardware=read("hardware", lambda: _hardware(root)),
        absent=probe.absent,
    )


def container(root: Path, environment: Mapping[str, str]) -> str:
    """Return the container runtime of this process. Raises AbsentError if none is detected."""
    if any(name in environment for name in _IMAGES) or (root / ".singularity.d").exists():
        return "apptainer"
    if any("enroot" in str(mount) for mount in mounts(root) if mount.point == "/"):
        return "enroot"
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "kubernetes"
    if (root / "run/.containerenv").exists():
        return "podman"
    if (root / ".dockerenv").exists():
        return "docker"
    raise AbsentError("no sign of docker, podman, apptainer, enroot or kubernetes")


def _image(environment: Mapping[str, str]) -> str:
    for name in _IMAGES:
        if environment.get(name):
            return environment[name]
    raise AbsentError("no container image is reported")


def _name(root: Path) -> str:
    for file in ("etc/os-release", "usr/lib/os-release"):
        for line in (text_or_none(root / file) or "").splitlines():
            if line.startswith("PRETTY_NAME="):
                return line.partition("=")[2].strip("\"'")
    raise AbsentError("/etc/os-release has no name")


def _hardware(root: Path) -> str:
    folder = root / _DMI
    if folder.is_dir():
        return f"{text_of(folder / 'sys_vendor')} {text_of(folder / 'product_name')}".strip()
    if tree := text_or_none(root / "proc/device-tree/model"):
        return tree
    raise AbsentError("the firmware reports no name to the kernel")


_LINK_LAYERS = {1: "Ethernet", 32: "InfiniBand"}
"""Link layers by the kernel's interface type (linux/if_arp.h), without the loopback's."""
_RATE = re.compile(r"([\d.]+)\s*Gb/sec")


def network_ports(root: Path = ROOT) -> tuple[NetworkPort, ...]:
    """Return the ports of adapters, followed by the network interfaces.

    Virtual interfaces, such as those of containers and bridges, are included only if they are up
    and there are no others, because they do not describe the machine.
    """
    interfaces = tuple(_interfaces(root))
    hardware = tuple(port for port in interfaces if not port.virtual)
    adapters = entries(root / "sys/class/infiniband")
    verbs = (_adapter_port(each, port) for each in adapters for port in entries(each / "ports"))
    return (*verbs, *(hardware or interfaces))


def _adapter_port(adapter: Path, port: Path) -> NetworkPort:
    probe = Probe(OSError)
    rate = probe.read("rate", lambda: text_of(port / "rate"))
    number = _RATE.match(rate or "")
    if number is None:
        probe.absent["gigabits"] = probe.absent.get("rate", f"the kernel reports '{rate}'")
    state = text_or_none(port / "state") or "unknown"
    return NetworkPort(
        name=f"{adapter.name}/{port.name}",
        kind="InfiniBand",
        link_layer=text_or_none(port / "link_layer") or "InfiniBand",
        gigabits=None if number is None else float(number[1]),
        rate=rate,
        state=state.partition(": ")[2] or state,
        adapter=probe.read("adapter", lambda: _adapter_model(adapter)),
        firmware=probe.read("firmware", lambda: text_of(adapter / "fw_ver")),
        absent=probe.absent,
    )


def _adapter_model(adapter: Path) -> str:
    return f"{text_of(adapter / 'hca_type')} {text_or_none(adapter / 'board_id') or ''}".strip()


def _interfaces(root: Path) -> Iterator[NetworkPort]:
    for interface in entries(root / "sys/class/net"):
        if not (interface / "type").exists():  # Other files, e.g. the list of all bonds.
            continue
        layer = _LINK_LAYERS.get(number_of(interface / "type"))
        state = text_or_none(interface / "operstate") or "unknown"
        virtual = not (interface / "device").exists()
        if layer is not None and not (virtual and state == "down"):
            yield _interface(interface, layer, state, virtual)


def _interface(interface: Path, layer: str, state: str, virtual: bool) -> NetworkPort:
    probe = Probe(OSError, ValueError)
    probe.absent |= dict.fromkeys(("rate", "firmware"), "adapters report it, not interfaces")
    return NetworkPort(
        name=interface.name,
        kind="Ethernet",
        link_layer=layer,
        gigabits=probe.read("gigabits", lambda: _gigabits(interface)),
        state=state,
        adapter=probe.read("adapter", lambda: _driver(interface)),
        virtual=virtual,
        absent=probe.absent,
    )


def _gigabits(interface: Path) -> float:
    megabits = number_of(interface / "speed")
    if megabits <= 0:
        raise AbsentError("its driver reports no speed")
    return megabits / 1000


def _driver(interface: Path) -> str:
    driver = interface / "device/driver"
    if not driver.exists():
        raise AbsentError("it has no driver")
    return driver.resolve().name
