"""Network ports, file systems and disks: compared with psutil, findmnt, df and lsblk on this
machine, and on simulated adapters."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.system.trees import write

from aiperf_hpc.system.description import NetworkPort
from aiperf_hpc.system.kernel import (
    Mount,
    disks,
    file_systems,
    known_mount_of,
    mount_of,
    mounts,
    network_ports,
)


def adapter(name: str, port: int, **files: str) -> dict[str, str]:
    """Return an adapter's files as the driver mlx5 writes them."""
    folder = f"sys/class/infiniband/{name}"
    usual = {"rate": "400 Gb/sec (4X NDR)", "state": "4: ACTIVE", "link_layer": "InfiniBand"}
    return {
        f"{folder}/hca_type": "MT4129",
        f"{folder}/board_id": "MT_0000000970",
        f"{folder}/fw_ver": "28.39.2048",
        **{f"{folder}/ports/{port}/{n}": text for n, text in (usual | files).items()},
    }


def listed(*command: str) -> Any:  # noqa: ANN401 -- JSON
    """Return the output of a command that prints JSON."""
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


def test_interfaces_have_the_speed_that_psutil_reads() -> None:
    theirs, found = psutil.net_if_stats(), network_ports()
    assert found
    for port in found:
        if port.kind == "Ethernet":
            assert port.state != "down" or not port.virtual
            assert (port.gigabits or 0.0) * 1000 == theirs[port.name].speed
            assert (port.gigabits is None) == ("gigabits" in port.absent)


def test_ports_of_infiniband_and_roce_adapters(tmp_path: Path) -> None:
    write(tmp_path, adapter("mlx5_0", 1))
    write(tmp_path, adapter("mlx5_1", 1, rate="100 Gb/sec (4X EDR)", link_layer="Ethernet"))
    write(tmp_path, adapter("mlx5_2", 1, rate="10 Gb/sec (4X SDR)", state="1: DOWN"))
    first, second, third = network_ports(tmp_path)
    assert first == NetworkPort(
        name="mlx5_0/1", kind="InfiniBand", link_layer="InfiniBand", gigabits=400.0,
        rate="400 Gb/sec (4X NDR)", state="ACTIVE", adapter="MT4129 MT_0000000970",
        firmware="28.39.2048",
    )  # fmt: skip
    assert (second.kind, second.link_layer) == ("InfiniBand", "Ethernet")
    assert third.state == "DOWN"


def test_an_adapter_without_properties(tmp_path: Path) -> None:
    (tmp_path / "sys/class/infiniband/hfi1_0/ports/1").mkdir(parents=True)
    (port,) = network_ports(tmp_path)
    assert (port.state, port.gigabits) == ("unknown", None)
    assert port.absent.keys() == {"rate", "gigabits", "adapter", "firmware"}
    assert "No such file" in port.absent["gigabits"]


def test_virtual_interfaces_are_omitted_if_there_is_a_physical_one(tmp_path: Path) -> None:
    for name, state in (("eth0", "up"), ("docker0", "down"), ("veth1", "up"), ("lo", "unknown")):
        write(tmp_path / "sys/class/net" / name, {
            "type": "772" if name == "lo" else "1",
            "operstate": state,
            "speed": "25000" if name == "eth0" else "10000",
        })  # fmt: skip
    write(tmp_path, {"sys/class/net/bonding_masters": "bond0"})
    assert [port.name for port in network_ports(tmp_path)] == ["eth0", "veth1"]
    driver = tmp_path / "sys/bus/drivers/mlx5_core"
    driver.mkdir(parents=True)
    device = tmp_path / "sys/class/net/eth0/device"
    device.mkdir()
    (device / "driver").symlink_to(driver)
    (port,) = network_ports(tmp_path)
    assert (port.name, port.gigabits, port.adapter) == ("eth0", 25.0, "mlx5_core")


def test_mounts_match_findmnt() -> None:
    theirs = listed("findmnt", "--kernel", "--list", "--json", "--output", "TARGET,FSTYPE")
    wanted = [(each["target"], each["fstype"]) for each in theirs["filesystems"]]
    assert sorted((m.point, m.type) for m in mounts()) == sorted(wanted)


@pytest.mark.parametrize("folder", ["/", "/proc", "/dev/shm", "."])
def test_the_file_system_of_a_folder_matches_findmnt_and_df(folder: str) -> None:
    path = Path(folder).resolve()
    # Of several mounts at one point, the last hides the others.
    theirs = listed("findmnt", "--json", "--target", str(path))["filesystems"][-1]
    (ours,) = file_systems({"run": Path(folder)})
    assert (ours.mount_point, ours.type, ours.path) == (
        theirs["target"], theirs["fstype"], str(path)
    )  # fmt: skip
    assert set(ours.options) <= set(theirs["options"].split(",")) | {"rw"}
    assert ours.total_bytes == shutil.disk_usage(path).total


def test_the_file_system_of_a_folder_to_be_created(tmp_path: Path) -> None:
    (found,) = file_systems({"run": tmp_path / "runs" / "later"})
    assert found.path.endswith("/runs/later")
    assert found.total_bytes == shutil.disk_usage(tmp_path).total


def test_a_folder_is_on_the_deepest_and_latest_mount(tmp_path: Path) -> None:
    lines = [
        r"1 0 8:1 / / rw,relatime - ext4 /dev/sda1 rw",
        r"2 1 0:40 / /scratch rw - lustre 10.0.0.1@o2ib:/old rw,flock",
        r"3 1 0:41 / /scratch rw shared:5 master:1 - lustre 10.0.0.1@o2ib:/new rw,flock",
        r"4 3 0:42 /a /scratch/my\040runs rw,nosuid - nfs4 server:/x rw,vers=4.2,hard",
    ]
    write(tmp_path, {"proc/self/mountinfo": "\n".join(lines)})
    assert mount_of(Path("/scratch/x"), tmp_path).source == "10.0.0.1@o2ib:/new"
    assert mount_of(Path("/scratchy"), tmp_path).point == "/"
    assert mount_of(Path("/scratch/my runs/r1"), tmp_path) == Mount(
        "/a", "/scratch/my runs", ("rw", "nosuid", "vers=4.2", "hard"), "nfs4", "server:/x"
    )


def test_a_folder_outside_all_mounts_is_on_an_unknown_file_system(tmp_path: Path) -> None:
    assert known_mount_of(Path("/x"), tmp_path).type == "unknown"
    write(tmp_path, {"proc/self/mountinfo": r"2 1 0:40 / /scratch rw - lustre 10.0.0.1:/a rw"})
    assert known_mount_of(Path("/x"), tmp_path).type == "unknown"
    assert known_mount_of(Path("/scratch/x"), tmp_path).type == "lustre"


def test_options_that_may_be_secrets_are_not_recorded(tmp_path: Path) -> None:
    line = "1 0 0:40 / / rw - cifs //nas/share rw,password=hunter2,lowerdir=/a:/b:/c,vers=3.0"
    write(tmp_path, {"proc/self/mountinfo": line})
    (found,) = file_systems({"data": Path("/")}, tmp_path)
    assert found.options == ("rw", "vers=3.0")


def test_disks_match_lsblk(tmp_path: Path) -> None:
    fields = "NAME,SIZE,ROTA,TYPE"
    found_there = listed("lsblk", "--json", "--bytes", "--nodeps", "--output", fields)
    theirs = {
        (d["name"], d["size"], d["rota"])
        for d in found_there["blockdevices"]
        if d["type"] == "disk" and d["size"] and not d["name"].startswith(("zram", "ram", "nbd"))
    }
    assert {(d.name, d.total_bytes, d.rotational) for d in disks()} == theirs
    write(tmp_path, {
        "sys/block/nvme0n1/size": "3750748848",
        "sys/block/nvme0n1/device/model": "SAMSUNG MZ7L31T9HBLT-00A07   ",
        "sys/block/nvme0n1/queue/rotational": "0",
        "sys/block/loop0/size": "8",
    })  # fmt: skip
    (found,) = disks(tmp_path)
    assert (found.model, found.total_bytes) == ("SAMSUNG MZ7L31T9HBLT-00A07", 3750748848 * 512)
