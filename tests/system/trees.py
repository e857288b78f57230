"""Simulated ``/proc`` and ``/sys`` of machines, as the kernel writes them."""

from __future__ import annotations

from pathlib import Path


def write(root: Path, files: dict[str, str]) -> None:
    """Write files below a root."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def processor_tree(root: Path, *, sockets: int, cores: int, threads: int) -> None:
    """Write a machine's processors, with the number of cores per socket and threads per core.

    As on x86, the second threads of all cores come after the first ones of all cores.
    """
    total = sockets * cores
    count = total * threads
    cpus = {cpu: (cpu % total // cores, cpu % total) for cpu in range(count)}
    base = "sys/devices/system/cpu"
    write(root, {f"{base}/{name}": f"0-{count - 1}" for name in ("online", "possible", "present")})
    for cpu, (socket, core) in cpus.items():
        own = [other for other, where in cpus.items() if where[1] == core]
        package = [other for other, where in cpus.items() if where[0] == socket]
        folder = f"{base}/cpu{cpu}"
        topology = {
            "physical_package_id": str(socket),
            "core_id": str(core),
            "core_cpus_list": _list(own),
            "package_cpus_list": _list(package),
        }
        for name, members in (("thread_siblings", own), ("core_siblings", package)):
            topology[name] = f"{sum(1 << member for member in members):x}"
            topology[f"{name}_list"] = _list(members)
        write(root, {f"{folder}/topology/{name}": text for name, text in topology.items()})
        caches = [("1", "Data", "48K", own), ("1", "Instruction", "32K", own)]
        caches += [("2", "Unified", "2048K", own), ("3", "Unified", "107520K", package)]
        for index, (level, kind, size, members) in enumerate(caches):
            cache = {
                "level": level,
                "type": kind,
                "size": size,
                "shared_cpu_list": _list(members),
                "shared_cpu_map": f"{sum(1 << member for member in members):x}",
            }
            write(root, {f"{folder}/cache/index{index}/{k}": v for k, v in cache.items()})
        clocks = {"cpuinfo_max_freq": 3800, "cpuinfo_min_freq": 800, "base_frequency": 2000}
        write(root, {f"{folder}/cpufreq/{name}": f"{mhz}000" for name, mhz in clocks.items()})
    block = "vendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Xeon(R) Platinum 8480+\nflags\t: fpu"
    text = "\n\n".join(f"processor\t: {cpu}\n{block}" for cpu in cpus)
    write(root, {"proc/cpuinfo": text, "proc/self/cgroup": "0::/"})


def _list(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))
