"""The description of a node, and the description of a system by its owner.

``absent`` has the reasons for fields that are None, by name. The owner's description is a YAML file
with properties that cannot be detected.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import ConfigDict, Field

from aiperf_hpc.trial import Value

Absent = dict[str, str]
"""Reasons for missing values, by name."""


class AcceleratorName(Value):
    """Identity of an accelerator in the node's description."""

    vendor: str
    index: int

    def __str__(self) -> str:
        return f"{self.vendor} {self.index}"


class Accelerator(Value):
    """An accelerator, as described by its vendor's tool."""

    vendor: str
    """Vendor."""
    model: str
    """Model name."""
    index: int
    """Number on this node, in the order of the vendor's tool."""
    uuid: str | None = None
    """UUID."""
    pci_address: str | None = None
    """Address on the PCI bus."""
    memory_bytes: int | None = None
    """Memory size in bytes."""
    driver: str | None = None
    """Driver version."""
    max_clock_mhz: float | None = None
    """Maximum clock of the compute units in MHz."""
    max_memory_clock_mhz: float | None = None
    """Maximum memory clock in MHz."""
    power_limit_watts: float | None = None
    """Current power limit in watts."""
    default_power_limit_watts: float | None = None
    """Default power limit in watts."""
    max_power_limit_watts: float | None = None
    """Highest configurable power limit in watts."""
    pcie: str | None = None
    """Fastest supported link to the host, e.g. PCIe 5.0 x16."""
    links: int | None = None
    """Number of active links to other accelerators, e.g. NVLinks."""
    partitioned: bool | None = None
    """Whether the accelerator is partitioned, e.g. by MIG."""
    absent: Absent = {}
    """Reasons for missing values, by name."""


class Processors(Value):
    """All processors of a node, as reported by its kernel."""

    model: str | None = None
    """Model name."""
    architecture: str
    """Instruction set architecture."""
    sockets: int | None = None
    """Number of sockets."""
    cores: int | None = None
    """Number of physical cores in all sockets."""
    threads: int
    """Number of online logical CPUs."""
    base_mhz: float | None = None
    """Base clock in MHz."""
    max_mhz: float | None = None
    """Maximum clock in MHz."""
    cache_bytes: dict[str, int] | None = None
    """Total size in bytes of all caches by kind, e.g. L1d, L1i, L2 and L3."""
    quota_cores: float | None = None
    """CPU quota of the control group in cores; None if there is none."""
    virtual: bool | None = None
    """Whether the node is a virtual machine."""
    vectors: tuple[str, ...] = ()
    """Vector and matrix instruction sets, as named by the kernel, e.g. avx512f."""
    absent: Absent = {}
    """Reasons for missing values, by name."""


class NumaNode(Value):
    """One NUMA node."""

    number: int
    """Number of the node."""
    cpus: str
    """Logical CPUs, e.g. 0-31,64-95."""
    memory_bytes: int | None = None
    """Memory size in bytes; None if the node has CPUs but no memory."""


class Memory(Value):
    """The memory of a node."""

    total_bytes: int
    """Size in bytes."""
    limit_bytes: int | None = None
    """Lowest memory limit of the process's control groups in bytes; None if there is none."""
    swap_bytes: int
    """Size of the swap space in bytes."""
    numa: tuple[NumaNode, ...] = ()
    """NUMA nodes."""
    absent: Absent = {}
    """Reasons for missing values, by name."""


class OperatingSystem(Value):
    """The operating system, its container and the machine it runs on."""

    name: str | None = None
    """Name."""
    kernel: str
    """Kernel version."""
    container: str | None = None
    """Container runtime: docker, podman, apptainer, enroot or kubernetes."""
    container_image: str | None = None
    """Image of the container; None outside a container."""
    hardware: str | None = None
    """Vendor and product of the machine, as reported by the firmware."""
    absent: Absent = {}
    """Reasons for missing values, by name."""


class NetworkPort(Value):
    """One port of a network adapter."""

    name: str
    """Interface name, e.g. eth0, or adapter and port, e.g. mlx5_0/1."""
    kind: Literal["Ethernet", "InfiniBand"]
    """Kind of port: network interface, or verbs (InfiniBand, RoCE, Omni-Path)."""
    link_layer: str
    """Link layer: InfiniBand or Ethernet."""
    gigabits: float | None = None
    """Current speed in 10^9 bits per second."""
    rate: str | None = None
    """Speed as reported by the kernel, e.g. 400 Gb/sec (4X NDR)."""
    state: str
    """State as reported by the kernel: up or down, ACTIVE or DOWN."""
    adapter: str | None = None
    """Model of the adapter, or its driver."""
    firmware: str | None = None
    """Firmware version."""
    virtual: bool = False
    """Whether the port has no hardware, as in a container or virtual machine."""
    absent: Absent = {}
    """Reasons for missing values, by name."""


class FileSystem(Value):
    """The file system of a folder."""

    use: str
    """Purpose of the folder: run, data or cache."""
    path: str
    """Path of the folder."""
    mount_point: str
    """Mount point."""
    type: str
    """File system type."""
    source: str
    """Mount source: a device or a server's export."""
    options: tuple[str, ...]
    """Mount options."""
    total_bytes: int | None = None
    """Size in bytes."""
    absent: Absent = {}
    """Reasons for missing values, by name."""


class Disk(Value):
    """One block device."""

    name: str
    """Name."""
    model: str | None = None
    """Model name."""
    total_bytes: int
    """Size in bytes."""
    rotational: bool
    """Whether the disk rotates (not an SSD)."""


class NodeDescription(Value):
    """A node. The description is equal for all its processes, except for parts hidden from some."""

    processors: Processors | None = None
    """Processors."""
    memory: Memory | None = None
    """Memory."""
    operating_system: OperatingSystem | None = None
    """Operating system."""
    accelerators: tuple[Accelerator, ...] = ()
    """Accelerators listed by vendors' tools."""
    pci_accelerators: dict[str, int] | None = None
    """Number of accelerators on the PCI bus by vendor, independent of vendors' tools."""
    network: tuple[NetworkPort, ...] = ()
    """Network ports."""
    file_systems: tuple[FileSystem, ...] = ()
    """File systems of the run and its data."""
    disks: tuple[Disk, ...] = ()
    """Disks."""
    software: dict[str, str] = {}
    """Versions of installed accelerator software: CUDA driver, CUDA, ROCm and CANN."""
    absent: Absent = {}
    """Reasons for missing values, by name."""


class Job(Value):
    """A scheduler's job, as described by its environment variables."""

    scheduler: str = "slurm"
    """Name of the scheduler."""
    id: str
    """Name."""
    partition: str | None = None
    """Partition."""
    nodes: str | None = None
    """Node list in the scheduler's notation, e.g. n[01-16]."""
    node_count: int | None = None
    """Number of nodes."""
    cpus_on_node: str | None = None
    """Logical CPUs of the job on the node."""
    gpus: str | None = None
    """Accelerators of the job."""
    cluster: str | None = None
    """Name of the cluster."""


class ProcessDescription(Value):
    """A process of a run: its resources and its environment."""

    cores: tuple[int, ...]
    """Logical CPUs of the affinity mask."""
    accelerator: str | None = None
    """Accelerator that the process is bound to from its start, e.g. CUDA_VISIBLE_DEVICES=3."""
    libraries: dict[str, str] = {}
    """Versions of loaded libraries, such as cuDNN and NCCL, as reported by frameworks and MPI."""
    arithmetic: dict[str, str] = {}
    """Arithmetic of fp32 matrix products by library: fp32, tf32 or bf16."""
    job: Job | None = None
    """Job of the scheduler."""
    environment: dict[str, str] = {}
    """Environment variables that affect computation, without potential secrets."""
    absent: Absent = {}
    """Reasons for missing values, by name."""


class RankDescription(Value):
    """The description of a rank and, for the first rank of each host, of its node."""

    host: str
    """Host name."""
    process: ProcessDescription
    """Process."""
    node: NodeDescription | None = None
    """Node; None if an earlier rank of this host describes it."""


SiteStatus = Literal[
    "",
    "Available on-premise",
    "Available cloud",
    "Research, Development, or Internal (RDI)",
    "Preview",
]
"""Availability of a system by MLPerf's rules; empty if not given."""
Text = Annotated[str, Field(max_length=4000)]


class SiteDescription(Value):
    """Description of a system by its owner, with the field names of MLPerf's system description."""

    model_config = ConfigDict(coerce_numbers_to_str=True, use_attribute_docstrings=True)

    submitter: Text = ""
    """Organization that submits the result."""
    system_name: Text = ""
    """Name of the system, for example JUWELS Booster."""
    division: Literal["", "closed", "open"] = ""
    """Division: closed or open."""
    status: SiteStatus = ""
    """Availability: one of MLPerf's four values listed below."""
    host_processor_interconnect: Text = ""
    """Interconnect between sockets, for example UPI."""
    host_memory_configuration: Text = ""
    """Memory modules, for example 16 x 64 GB DDR5-4800."""
    host_storage_type: Text = ""
    """For example Lustre or NVMe SSD; default: as detected."""
    host_storage_capacity: Text = ""
    """For example 14 PB; default: as detected."""
    host_networking: Text = ""
    """For example 4 x HDR InfiniBand; default: as detected."""
    host_networking_topology: Text = ""
    """For example fat tree or Dragonfly+."""
    accelerator_host_interconnect: Text = ""
    """For example PCIe 4.0 x16; default: as detected."""
    accelerator_interconnect: Text = ""
    """For example NVLink 3; default: as detected."""
    accelerator_interconnect_topology: Text = ""
    """For example fully connected."""
    accelerator_on_chip_memories: Text = ""
    """Caches of the accelerator."""
    accelerator_memory_configuration: Text = ""
    """For example HBM2e."""
    cooling: Text = ""
    """For example air or direct liquid."""
    hw_notes: Text = ""
    """Other notes on the hardware."""
    sw_notes: Text = ""
    """Other notes on the software."""


def site_template() -> str:
    """Return an empty description file with a comment on each entry."""
    text = (
        "# Description of this system: what cannot be detected. Every entry is optional.\n"
        "# For `aiperf start --system FILE` and `aiperf system --system FILE`.\n\n"
    )
    for name, field in SiteDescription.model_fields.items():
        values = [word for word in get_args(SiteStatus) if word] if name == "status" else []
        text += "\n#   ".join([f"# {field.description}", *values]) + f'\n{name}: ""\n'
    return text
