"""The description of a node. A field that is None has its reason in ``absent``, by its name."""

from __future__ import annotations

from typing import Literal

from aiperf_hpc.trial import Value

Absent = dict[str, str]
"""The reasons for which values are missing, by name."""


class AcceleratorName(Value):
    """One accelerator, as the node's description names it."""

    vendor: str
    index: int

    def __str__(self) -> str:
        return f"{self.vendor} {self.index}"


class Accelerator(Value):
    """An accelerator, as described by its vendor's tool."""

    vendor: str
    """The vendor."""
    model: str
    """The model."""
    index: int
    """Its number on this node, in the order of the vendor's tool."""
    uuid: str | None = None
    """Its UUID."""
    pci_address: str | None = None
    """The address on the PCI bus."""
    memory_bytes: int | None = None
    """Bytes of memory."""
    driver: str | None = None
    """The version of the driver."""
    max_clock_mhz: float | None = None
    """The highest clock of the compute units."""
    max_memory_clock_mhz: float | None = None
    """The highest clock of the memory, in MHz."""
    power_limit_watts: float | None = None
    """The current limit."""
    default_power_limit_watts: float | None = None
    """The power limit from the factory, in watts."""
    max_power_limit_watts: float | None = None
    """The highest limit that can be set."""
    pcie: str | None = None
    """The fastest supported link to the host, e.g. PCIe 5.0 x16."""
    links: int | None = None
    """The number of active links to other accelerators, e.g. NVLinks."""
    partitioned: bool | None = None
    """Whether it is divided into several, e.g. by MIG."""
    absent: Absent = {}
    """Missing facts by name, each with the reason."""


class Processors(Value):
    """All processors of a node, as its kernel sees them."""

    model: str | None = None
    """The model."""
    architecture: str
    """The processor's instruction set."""
    sockets: int | None = None
    """How many sockets there are."""
    cores: int | None = None
    """Physical cores of all sockets together."""
    threads: int
    """Online logical CPUs."""
    base_mhz: float | None = None
    """The base clock in MHz."""
    max_mhz: float | None = None
    """The highest clock in MHz."""
    cache_bytes: dict[str, int] | None = None
    """The sum over all caches of a kind, e.g. L1d, L1i, L2 and L3."""
    quota_cores: float | None = None
    """The CPU quota of the control group, in cores; None if there is none."""
    virtual: bool | None = None
    """Whether the node is a virtual machine."""
    vectors: tuple[str, ...] = ()
    """Vector and matrix instruction sets, as named by the kernel, e.g. avx512f."""
    absent: Absent = {}
    """Missing facts by name, each with the reason."""


class NumaNode(Value):
    """One NUMA node."""

    number: int
    """Its number."""
    cpus: str
    """Its logical CPUs, e.g. 0-31,64-95."""
    memory_bytes: int | None = None
    """None if it has CPUs but no memory."""


class Memory(Value):
    """The memory of a node."""

    total_bytes: int
    """Its size in bytes."""
    limit_bytes: int | None = None
    """The lowest limit of the process's control groups; None if there is none."""
    swap_bytes: int
    """Bytes of swap space."""
    numa: tuple[NumaNode, ...] = ()
    """The NUMA nodes."""
    absent: Absent = {}
    """Missing facts by name, each with the reason."""


class OperatingSystem(Value):
    """The operating system and the machine below it."""

    name: str | None = None
    """Its name."""
    kernel: str
    """The kernel's version."""
    container: str | None = None
    """The container runtime: docker, podman, apptainer, enroot or kubernetes."""
    container_image: str | None = None
    """The container's image; null outside of one."""
    hardware: str | None = None
    """Vendor and product, as named by the firmware."""
    absent: Absent = {}
    """Missing facts by name, each with the reason."""


class NetworkPort(Value):
    """One port of a network adapter."""

    name: str
    """The interface, e.g. eth0, or the adapter and its port, e.g. mlx5_0/1."""
    kind: Literal["Ethernet", "InfiniBand"]
    """Its interface: a network interface, or verbs (InfiniBand, RoCE, Omni-Path)."""
    link_layer: str
    """The link layer: InfiniBand or Ethernet."""
    gigabits: float | None = None
    """Its current speed in 10^9 bits per second."""
    rate: str | None = None
    """The speed as stated by the kernel, e.g. 400 Gb/sec (4X NDR)."""
    state: str
    """The state as stated by the kernel: up or down, ACTIVE or DOWN."""
    adapter: str | None = None
    """The model of the adapter, or its driver."""
    firmware: str | None = None
    """The version of the firmware."""
    virtual: bool = False
    """Whether it has no hardware, as in a container or virtual machine."""
    absent: Absent = {}
    """Missing facts by name, each with the reason."""


class FileSystem(Value):
    """The file system that holds a folder."""

    use: str
    """The purpose of the folder: run, data or cache."""
    path: str
    """The path."""
    mount_point: str
    """Where it is mounted."""
    type: str
    """Its type."""
    source: str
    """What is mounted."""
    options: tuple[str, ...]
    """The options of the mount."""
    total_bytes: int | None = None
    """Its size in bytes."""
    absent: Absent = {}
    """Missing facts by name, each with the reason."""


class Disk(Value):
    """One block device."""

    name: str
    """Its name."""
    model: str | None = None
    """The model."""
    total_bytes: int
    """Its size in bytes."""
    rotational: bool
    """Whether it is a rotating disk."""


class NodeDescription(Value):
    """A node; equal for all its processes, except for what is hidden from them."""

    processors: Processors | None = None
    """The processors."""
    memory: Memory | None = None
    """The memory."""
    operating_system: OperatingSystem | None = None
    """The operating system."""
    accelerators: tuple[Accelerator, ...] = ()
    """The accelerators that vendors' tools list."""
    pci_accelerators: dict[str, int] | None = None
    """The number of each vendor's accelerators on the PCI bus, with or without a tool."""
    network: tuple[NetworkPort, ...] = ()
    """The network's ports."""
    file_systems: tuple[FileSystem, ...] = ()
    """The file systems of the run and its data."""
    disks: tuple[Disk, ...] = ()
    """Its disks."""
    software: dict[str, str] = {}
    """Versions of what accelerators need, as installed: CUDA's driver, CUDA, ROCm and CANN."""
    absent: Absent = {}
    """Missing facts by name, each with the reason."""


class Job(Value):
    """A scheduler's job, as described by its environment variables."""

    scheduler: str = "slurm"
    """The scheduler."""
    id: str
    """Its name."""
    partition: str | None = None
    """The partition."""
    nodes: str | None = None
    """The node list in the scheduler's notation, e.g. n[01-16]."""
    node_count: int | None = None
    """How many nodes it has."""
    cpus_on_node: str | None = None
    """Logical CPUs of the job on the node."""
    gpus: str | None = None
    """The accelerators of the job."""
    cluster: str | None = None
    """The name of the cluster."""


class ProcessDescription(Value):
    """A process of a run: its resources and its environment."""

    cores: tuple[int, ...]
    """The logical CPUs of its affinity mask."""
    accelerator: str | None = None
    """The accelerator that it was bound to at its start, e.g. CUDA_VISIBLE_DEVICES=3."""
    libraries: dict[str, str] = {}
    """Versions of loaded libraries, as reported by frameworks and MPI: cuDNN, NCCL and so on."""
    arithmetic: dict[str, str] = {}
    """The arithmetic of fp32 matrix products by library: fp32, tf32 or bf16."""
    job: Job | None = None
    """The scheduler's job."""
    environment: dict[str, str] = {}
    """The environment variables that affect computation, without any that may be secret."""
    absent: Absent = {}
    """Missing facts by name, each with the reason."""


class RankDescription(Value):
    """The description of a rank and, for the first rank of each host, of its node."""

    host: str
    """The host's name."""
    process: ProcessDescription
    """The process."""
    node: NodeDescription | None = None
    """None if an earlier rank of this host describes it."""
