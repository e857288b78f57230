"""Fabricated descriptions of nodes."""

from __future__ import annotations

from aiperf_hpc.system.description import (
    Accelerator,
    FileSystem,
    Job,
    Memory,
    NetworkPort,
    NodeDescription,
    NumaNode,
    OperatingSystem,
    ProcessDescription,
    Processors,
    RankDescription,
)


def node(number: int = 0, *, accelerators: int = 8, model: str = "NVIDIA H100") -> NodeDescription:
    """Return a node of a cluster; equal ones differ as real ones do."""
    return NodeDescription(
        processors=Processors(
            model="Intel(R) Xeon(R) Platinum 8480+",
            architecture="x86_64",
            sockets=2,
            cores=112,
            threads=224,
            base_mhz=2000.0,
            max_mhz=3800.0,
            cache_bytes={"L1d": 112 * 48 * 2**10, "L3": 2 * 105 * 2**20},
            virtual=False,
        ),
        memory=Memory(
            total_bytes=2**41 - number * 4096,
            swap_bytes=0,
            numa=tuple(
                NumaNode(number=n, cpus=f"{n * 56}-{n * 56 + 55}", memory_bytes=2**40 - number)
                for n in range(2)
            ),
        ),
        operating_system=OperatingSystem(name="Ubuntu 22.04.4 LTS", kernel="5.15.0-1053-nvidia"),
        accelerators=tuple(
            Accelerator(
                vendor="NVIDIA",
                model=model,
                index=index,
                uuid=f"GPU-{number}-{index}",
                pci_address=f"0000:{number}{index}:00.0",
                memory_bytes=80 * 2**30,
                driver="550.54.15",
                max_clock_mhz=1980.0,
                power_limit_watts=650.0,
                max_power_limit_watts=700.0,
                pcie="PCIe 5.0 x16",
                links=18,
            )
            for index in range(accelerators)
        ),
        pci_accelerators={"NVIDIA": accelerators} if accelerators else {},
        network=tuple(
            NetworkPort(
                name=f"mlx5_{port}/1",
                kind="InfiniBand",
                link_layer="InfiniBand",
                gigabits=400.0,
                rate="400 Gb/sec (4X NDR)",
                state="ACTIVE",
                adapter="MT4129 MT_0000000970",
            )
            for port in range(8)
        ),
        file_systems=(
            FileSystem(
                use="run",
                path="/scratch/runs/r",
                mount_point="/scratch",
                type="lustre",
                source="10.0.0.1@o2ib:/scratch",
                options=("rw", "flock"),
                total_bytes=14 * 2**50,
            ),
        ),
        software={"CUDA driver": "12.4"},
        absent={"AMD": "rocm-smi is not installed"},
    )


def rank(
    host: str, described: NodeDescription | None, *, variables: dict[str, str] | None = None
) -> RankDescription:
    """Return what a rank on a host tells."""
    process = ProcessDescription(
        cores=(0, 1),
        libraries={"PyTorch": "2.5.1+cu124", "cuDNN": "9.1.0", "NCCL": "2.21.5"},
        job=Job(id="4711", partition="gpu", nodes="n[01-04]"),
        environment={"NCCL_DEBUG": "INFO"} if variables is None else variables,
    )
    return RankDescription(host=host, process=process, node=described)
