"""Inside the guest: a real NFSv4.2 server, and clients that are as separate as hosts are.

Standard library only. A client is a set of namespaces (mounts, network, host name) with a link
of its own to the server, which takes it for a host of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

MODULES = (
    "fs/netfs/netfs", "fs/fscache/fscache", "net/dns_resolver/dns_resolver", "net/sunrpc/sunrpc",
    "fs/nfs_common/grace", "fs/nfs_common/nfs_acl", "fs/lockd/lockd", "lib/oid_registry",
    "net/sunrpc/auth_gss/auth_rpcgss", "fs/nfsd/nfsd", "fs/nfs/nfs", "fs/nfs/nfsv4",
    "drivers/net/veth", "drivers/block/loop",
)  # fmt: skip
LEASE_SECONDS = 10
"""The server's lease and grace time; 90 is usual."""
RESULTS = Path("/mnt")
"""A folder of the host's."""
EXPORTS = Path("/srv")
SHARED = Path("/media")
"""Where a client sees its mount."""


def sh(command: str) -> str:
    """Run a command of the shell; return what it printed."""
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command}: status {done.returncode}: {done.stderr.strip()}")
    return done.stdout


class Server:
    """The NFS server of the guest, with file systems of its own on disks in memory."""

    def __init__(self, **mebibytes: int) -> None:
        """Boot it.

        Args:
            mebibytes: the exports' names and sizes.
        """
        modules = Path("/usr/lib/uml/modules") / sh("uname -r").strip() / "kernel"
        sh(" && ".join(f"insmod {modules / name}.ko" for name in MODULES))
        sh("mkdir -p /run/rpc_pipefs /run/rpcbind /var/lib/nfs/nfsdcld; ip link set lo up")
        sh("mount -t nfsd nfsd /proc/fs/nfsd; mount -t rpc_pipefs sunrpc /run/rpc_pipefs")
        sh("touch /var/lib/nfs/etab /var/lib/nfs/rmtab")
        for name in ("nfsv4leasetime", "nfsv4gracetime"):
            Path("/proc/fs/nfsd", name).write_text(f"{LEASE_SECONDS}")
        sh("rpcbind -w; nfsdcld; rpc.mountd")
        self._numbers = {"": 0}
        for number, (name, size) in enumerate(mebibytes.items(), 1):
            disk, folder = EXPORTS / f".{name}", EXPORTS / name
            sh(f"truncate -s {size}M {disk} && mkfs.ext4 -q -m 0 -E nodiscard {disk}")
            sh(f"mkdir {folder} && mount -o loop {disk} {folder}")
            self._numbers[name] = number
        for name in self._numbers:
            self.export(name)
        self.start()

    def export(self, name: str) -> None:
        """Offer a file system to all clients."""
        rights = "rw" if name else "ro"
        number = self._numbers[name]
        options = f"{rights},sync,no_root_squash,no_subtree_check,insecure,fsid={number}"
        sh(f"exportfs -o {options} '*:{EXPORTS / name}'")

    def unexport(self, name: str) -> None:
        """Take it back: whoever uses it sees stale handles."""
        sh(f"exportfs -u '*:{EXPORTS / name}' && exportfs -f")

    def start(self) -> None:
        """Serve."""
        sh("rpc.nfsd -N 3 4")

    def stop(self) -> None:
        """Cease to answer, as a server that is switched off does."""
        sh("rpc.nfsd 0")

    def fill(self, name: str) -> None:
        """Leave no room on an export's disk."""
        sh(f"dd if=/dev/zero of={EXPORTS / name}/fill bs=1k 2>/dev/null || true")

    def free(self, name: str) -> None:
        """Undo that."""
        (EXPORTS / name / "fill").unlink()


class Client:
    """A host that has mounted an export."""

    count = 0

    def __init__(self, export: str, options: str = "") -> None:
        """Boot it.

        Args:
            export: what to mount.
            options: of the mount, beside ``vers=4.2``.
        """
        Client.count += 1
        name = f"n{Client.count}"
        host, server = f"10.99.{Client.count}.2", f"10.99.{Client.count}.1"
        process = subprocess.Popen(
            ["unshare", "-m", "-n", "-u", "sh", "-c", f"hostname {name}; echo; exec sleep 1d"],
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        process.stdout.readline()
        self.pid = process.pid
        sh(f"ip link add {name} type veth peer name eth0 netns {self.pid}")
        sh(f"ip addr add {server}/30 dev {name} && ip link set {name} up")
        mount = ",".join(filter(None, ("vers=4.2", options)))
        self.call(
            "sh", "-c",
            f"ip link set lo up && ip addr add {host}/30 dev eth0 && ip link set eth0 up && "
            f"mount -t nfs -o {mount} {server}:/{export} {SHARED}",
        )  # fmt: skip

    def command(self, *command: object) -> list[str]:
        """Return what runs a command on this host."""
        return on_host(self.pid, *command)

    def call(self, *command: object) -> str:
        """Run a command there; return what it printed."""
        done = subprocess.run(self.command(*command), stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout

    def program(self, name: str, *arguments: object) -> Program:
        """Start one of the programs there."""
        command = self.command(sys.executable, "-m", "tests.nfs.programs", name, *arguments)
        return Program(command)


class Program:
    """A program that runs on a client, and ends with one line of JSON."""

    count = 0

    def __init__(self, command: list[str]) -> None:
        Program.count += 1
        self._output = RESULTS / f"program-{Program.count}"
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output)

    def result(self) -> Any:  # noqa: ANN401 -- whatever JSON it is
        """Wait for its end; return what it says."""
        status = self._process.wait()
        said = self._output.read_text("utf-8")
        if status != 0:
            raise RuntimeError(f"{self._process.args!r}: status {status}: {said}")
        return json.loads(said.splitlines()[-1])


def on_host(pid: int, *command: object) -> list[str]:
    """Return what runs a command in the namespaces of a process."""
    return ["nsenter", "-t", str(pid), "-m", "-n", "-u", *(str(part) for part in command)]
