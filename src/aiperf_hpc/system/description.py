"""The values that describe a node. What is None has its reason in ``absent``, by its name."""

from __future__ import annotations

from typing import Literal

from aiperf_hpc.trial import Value

Absent = dict[str, str]
"""Why something is not told, by its name."""


class AcceleratorName(Value):
    """One accelerator, as the node's description names it."""

    vendor: str
    index: int

    def __str__(self) -> str:
        return f"{self.vendor} {self.index}"


class Accelerator(Value):
    """One accelerator as its vendor's tool names and counts it."""

    vendor: str
    model: str
    index: int
    """The vendor's number of it on this node, in the order of its own tool."""
    uuid: str | None = None
    pci_address: str | None = None
    memory_bytes: int | None = None
    driver: str | None = None
    max_clock_mhz: float | None = None
    """The highest clock of what computes."""
    max_memory_clock_mhz: float | None = None
    power_limit_watts: float | None = None
    """The limit that is set now."""
    default_power_limit_watts: float | None = None
    max_power_limit_watts: float | None = None
    """The highest that may be set."""
    pcie: str | None = None
    """The fastest link to the host that it can have, e.g. PCIe 5.0 x16."""
    links: int | None = None
    """Its links to other accelerators that are up, e.g. NVLinks."""
    partitioned: bool | None = None
    """Whether it is divided into several, e.g. by MIG."""
    absent: Absent = {}


class Processors(Value):
    """All processors of a node, as its kernel sees them."""

    model: str | None = None
    architecture: str
    sockets: int | None = None
    cores: int | None = None
    """Physical cores of all sockets together."""
    threads: int
    """Logical CPUs that are on line."""
    base_mhz: float | None = None
    max_mhz: float | None = None
    cache_bytes: dict[str, int] | None = None
    """The sum over all caches of a kind, e.g. L1d, L1i, L2 and L3."""
    quota_cores: float | None = None
    """How many cores' time the control group may use; None where it may use all."""
    virtual: bool | None = None
    """Whether they are a virtual machine's."""
    vectors: tuple[str, ...] = ()
    """What instructions they have for vectors and matrices, in the kernel's words, e.g. avx512f."""
    absent: Absent = {}


class NumaNode(Value):
    """One NUMA node."""

    number: int
    cpus: str
    """Its logical CPUs, e.g. 0-31,64-95."""
    memory_bytes: int | None = None
    """None where it has CPUs and no memory of its own."""


class Memory(Value):
    """The memory of a node."""

    total_bytes: int
    limit_bytes: int | None = None
    """The least limit of the control groups that this process is in; None where there is none."""
    swap_bytes: int
    numa: tuple[NumaNode, ...] = ()
    absent: Absent = {}


class OperatingSystem(Value):
    """What the processes run on."""

    name: str | None = None
    kernel: str
    container: str | None = None
    """What contains the process: docker, podman, apptainer, enroot or kubernetes."""
    container_image: str | None = None
    hardware: str | None = None
    """Maker and product as the firmware names them."""
    absent: Absent = {}


class NetworkPort(Value):
    """One port of a network adapter."""

    name: str
    """The interface, e.g. eth0, or the adapter and its port, e.g. mlx5_0/1."""
    kind: Literal["Ethernet", "InfiniBand"]
    """How it is reached: as a network interface, or by verbs (InfiniBand, RoCE, Omni-Path)."""
    link_layer: str
    """What goes over the wire: InfiniBand or Ethernet."""
    gigabits: float | None = None
    """Its speed now, in 10^9 bits a second."""
    rate: str | None = None
    """The kernel's words for the speed, e.g. 400 Gb/sec (4X NDR)."""
    state: str
    """In the kernel's words: up or down, ACTIVE or DOWN."""
    adapter: str | None = None
    """The model of the adapter, or its driver."""
    firmware: str | None = None
    virtual: bool = False
    """Whether no hardware is behind it here, as in a container or virtual machine."""
    absent: Absent = {}


class FileSystem(Value):
    """The file system that holds a folder."""

    use: str
    """What the folder is for: run, data or cache."""
    path: str
    mount_point: str
    type: str
    source: str
    options: tuple[str, ...]
    total_bytes: int | None = None
    absent: Absent = {}


class Disk(Value):
    """One block device."""

    name: str
    model: str | None = None
    total_bytes: int
    rotational: bool


class NodeDescription(Value):
    """One node; equal for all processes on it, but for what they are kept from seeing."""

    processors: Processors | None = None
    memory: Memory | None = None
    operating_system: OperatingSystem | None = None
    accelerators: tuple[Accelerator, ...] = ()
    """Those that a vendor's tool told of."""
    pci_accelerators: dict[str, int] | None = None
    """How many each vendor has on the PCI bus, tool or none; empty where the bus has none."""
    network: tuple[NetworkPort, ...] = ()
    file_systems: tuple[FileSystem, ...] = ()
    disks: tuple[Disk, ...] = ()
    software: dict[str, str] = {}
    """Versions of what accelerators need, as installed: CUDA's driver, CUDA, ROCm and CANN."""
    absent: Absent = {}


class Job(Value):
    """A scheduler's job, as it tells its processes by variables."""

    scheduler: str = "slurm"
    id: str
    partition: str | None = None
    nodes: str | None = None
    """The node list in the scheduler's words, e.g. n[01-16]."""
    node_count: int | None = None
    cpus_on_node: str | None = None
    gpus: str | None = None
    cluster: str | None = None


class ProcessDescription(Value):
    """One process of a run: what it may use, and what it was started with."""

    cores: tuple[int, ...]
    """The logical CPUs that it may use."""
    accelerator: str | None = None
    """The one that it was bound to before it began, e.g. CUDA_VISIBLE_DEVICES=3; None where it was
    bound to none."""
    libraries: dict[str, str] = {}
    """Versions that the frameworks and MPI report, of what is loaded: cuDNN, NCCL and so on."""
    arithmetic: dict[str, str] = {}
    """What the loaded frameworks compute products of fp32 in: fp32, tf32 or bf16; by library."""
    job: Job | None = None
    environment: dict[str, str] = {}
    """The variables that change how it computes; never one that may be a secret."""
    absent: Absent = {}


class RankDescription(Value):
    """What a rank tells of itself, and the first rank of each host of its node."""

    host: str
    process: ProcessDescription
    node: NodeDescription | None = None
    """None where an earlier rank of this host has told it."""
