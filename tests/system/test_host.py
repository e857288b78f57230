"""Processors, memory and operating system: compared with lscpu, psutil and free on this machine,
and with lscpu on simulated machines."""

from __future__ import annotations

import json
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.system.trees import processor_tree, write

from aiperf_hpc.host.machine import remaining_memory
from aiperf_hpc.system.kernel import memory, memory_limit, operating_system, processors, quota_cores
from aiperf_hpc.system.tools import numbers_in


def lscpu(*options: str) -> dict[str, str]:
    done = subprocess.run(["lscpu", "--json", "--bytes", *options], capture_output=True, check=True)
    found: dict[str, str] = {}

    def collect(fields: list[dict[str, Any]]) -> None:
        for each in fields:
            found[each["field"].rstrip(":")] = each["data"]
            collect(each.get("children", []))

    collect(json.loads(done.stdout)["lscpu"])
    return found


def number(text: str) -> int:
    found = re.match(r"\d+", text)
    assert found is not None
    return int(found[0])


def test_processors_match_lscpu() -> None:
    ours, theirs = processors(), lscpu()
    assert ours.model == theirs["Model name"]
    assert ours.architecture == theirs["Architecture"]
    assert ours.threads == len(numbers_in(theirs["On-line CPU(s) list"]))
    assert ours.sockets == int(theirs["Socket(s)"])
    assert ours.cores == int(theirs["Core(s) per socket"]) * int(theirs["Socket(s)"])
    assert ours.virtual == ("Hypervisor vendor" in theirs)
    assert ours.cache_bytes
    for name, size in ours.cache_bytes.items():
        assert size == number(theirs[f"{name} cache"])


@pytest.mark.parametrize(("sockets", "cores", "threads"), [(2, 4, 2), (1, 3, 1), (4, 2, 1)])
def test_processors_of_simulated_machines_match_lscpu(
    tmp_path: Path, sockets: int, cores: int, threads: int
) -> None:
    processor_tree(tmp_path, sockets=sockets, cores=cores, threads=threads)
    ours, theirs = processors(tmp_path), lscpu("--sysroot", str(tmp_path))
    assert ours.sockets == int(theirs["Socket(s)"]) == sockets
    assert ours.cores == int(theirs["Core(s) per socket"]) * sockets == sockets * cores
    assert ours.threads == int(theirs["CPU(s)"]) == sockets * cores * threads
    assert ours.max_mhz == float(theirs["CPU max MHz"]) == 3800.0
    assert ours.model == theirs["Model name"]
    assert ours.base_mhz == 2000.0
    assert ours.cache_bytes is not None
    assert ours.cache_bytes["L3"] == number(theirs["L3 cache"]) == sockets * 107520 * 2**10
    assert ours.cache_bytes["L1d"] == number(theirs["L1d cache"])


def test_without_cpufreq_the_base_clock_is_that_of_the_model_name(tmp_path: Path) -> None:
    processor_tree(tmp_path, sockets=1, cores=2, threads=1)
    for path in tmp_path.glob("sys/devices/system/cpu/cpu*/cpufreq/*"):
        path.unlink()
    found = processors(tmp_path)
    assert found.max_mhz is None
    assert "virtual machine" in found.absent["max_mhz"]
    assert "base_mhz" in found.absent
    write(tmp_path, {"proc/cpuinfo": "model name : Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz"})
    assert processors(tmp_path).base_mhz == 2400.0


def test_memory_matches_free() -> None:
    lines = subprocess.run(["free", "--bytes"], capture_output=True, check=True, text=True)
    total = {row.split()[0]: int(row.split()[1]) for row in lines.stdout.splitlines()[1:]}
    found = memory()
    assert found.total_bytes == total["Mem:"] == psutil.virtual_memory().total
    assert found.swap_bytes == total["Swap:"]
    theirs = lscpu()
    assert len(found.numa) == int(theirs["NUMA node(s)"])
    for node in found.numa:
        assert numbers_in(node.cpus) == numbers_in(theirs[f"NUMA node{node.number} CPU(s)"])


def test_numa_nodes_with_and_without_memory(tmp_path: Path) -> None:
    write(tmp_path, {
        "proc/meminfo": "MemTotal:       2097152 kB\nMemFree:  1 kB",
        "proc/self/cgroup": "0::/",
        "sys/devices/system/node/node0/cpulist": "0-3",
        "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal:       1048576 kB",
        "sys/devices/system/node/node10/cpulist": "",
        "sys/devices/system/node/node10/meminfo": "Node 10 MemTotal:      1048576 kB",
        "sys/devices/system/node/node2/cpulist": "4-7",
        "sys/devices/system/node/node2/meminfo": "Node 2 MemTotal:             0 kB",
        "sys/devices/system/node/possible": "0,2,10",
    })  # fmt: skip
    found = memory(tmp_path)
    assert [(n.number, n.cpus, n.memory_bytes) for n in found.numa] == [
        (0, "0-3", 2**30), (2, "4-7", None), (10, "", 2**30),
    ]  # fmt: skip
    assert found.swap_bytes == 0
    assert found.limit_bytes is None


JOB = "system.slice/slurmstepd.scope/job_7"


@pytest.mark.parametrize(
    ("groups", "files", "memory", "cores"),
    [
        (  # The lowest limit of the enclosing groups.
            f"0::/{JOB}/step_0",
            {"system.slice/memory.max": "max", f"{JOB}/memory.max": str(64 * 2**30),
             f"{JOB}/step_0/memory.max": "max", f"{JOB}/step_0/cpu.max": "1600000 100000"},
            64 * 2**30, 16.0,
        ),
        (  # Version 1. A container's own group is mounted as the root.
            "9:memory:/docker/ab\n4:cpuacct,cpu:/docker/ab\n0::/",
            {"memory/memory.limit_in_bytes": str(8 * 2**30), "cpu/cpu.cfs_quota_us": "250000",
             "cpu/cpu.cfs_period_us": "100000"},
            8 * 2**30, 2.5,
        ),
        (  # No limits.
            "9:memory:/\n0::/",
            {"memory/memory.limit_in_bytes": "9223372036854771712", "cpu.max": "max 100000"},
            None, None,
        ),
    ],
)  # fmt: skip
def test_limits_of_control_groups(
    tmp_path: Path, groups: str, files: dict[str, str], memory: int | None, cores: float | None
) -> None:
    write(tmp_path, {"proc/self/cgroup": groups})
    write(tmp_path / "sys/fs/cgroup", files)
    assert (memory_limit(tmp_path), quota_cores(tmp_path)) == (memory, cores)


@pytest.mark.parametrize(
    ("groups", "files", "remaining"),
    [
        ("0::/", {}, None),
        (  # A job's group, with 3,000 bytes of reclaimable cache.
            f"0::/{JOB}/step_0",
            {f"{JOB}/memory.max": "10000", f"{JOB}/memory.current": "7000",
             f"{JOB}/memory.stat": "anon 1000\ninactive_file 3000\n",
             f"{JOB}/step_0/memory.max": "max"},
            6000,
        ),
        (  # Version 1.
            "9:memory:/job\n0::/",
            {"memory/job/memory.limit_in_bytes": "5000", "memory/job/memory.usage_in_bytes": "6000",
             "memory/job/memory.stat": "total_inactive_file 500\n"},
            0,
        ),
    ],
)  # fmt: skip
def test_memory_that_control_groups_leave(
    tmp_path: Path, groups: str, files: dict[str, str], remaining: int | None
) -> None:
    assert remaining_memory(tmp_path) is None
    write(tmp_path, {"proc/self/cgroup": groups})
    write(tmp_path / "sys/fs/cgroup", files)
    assert remaining_memory(tmp_path) == remaining


def test_the_operating_system_matches_python() -> None:
    found = operating_system()
    assert found.name == platform.freedesktop_os_release()["PRETTY_NAME"]
    assert found.kernel == platform.release()


MOUNTS = "1 0 8:1 {folder} / rw - {type} {source} rw"


@pytest.mark.parametrize(
    ("files", "variables", "container", "image"),
    [
        ({".dockerenv": ""}, {}, "docker", None),
        ({"run/.containerenv": "", ".dockerenv": ""}, {}, "podman", None),
        ({".singularity.d/runscript": ""}, {}, "apptainer", None),
        ({}, {"APPTAINER_CONTAINER": "/images/torch.sif"}, "apptainer", "/images/torch.sif"),
        ({"proc/self/mountinfo": MOUNTS.format(
            folder="/u/me/.local/share/enroot/pyt", type="ext4", source="/dev/sda1")},
         {}, "enroot", None),
        ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes", None),
        ({}, {}, None, None),
    ],
)  # fmt: skip
def test_containers_are_detected(
    tmp_path: Path,
    files: dict[str, str],
    variables: dict[str, str],
    container: str | None,
    image: str | None,
) -> None:
    write(tmp_path, {
        "proc/self/mountinfo": MOUNTS.format(folder="/", type="ext4", source="/dev/sda1"),
        "etc/os-release": 'PRETTY_NAME="X 1"',
        "sys/class/dmi/id/sys_vendor": "NVIDIA",
        "sys/class/dmi/id/product_name": "DGXA100 920-23687-2530-000",
        **files,
    })  # fmt: skip
    found = operating_system(tmp_path, variables)
    assert (found.name, found.hardware) == ("X 1", "NVIDIA DGXA100 920-23687-2530-000")
    assert (found.container, found.container_image) == (container, image)
    assert ("container" in found.absent) == (container is None)
