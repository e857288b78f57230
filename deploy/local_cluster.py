"""A real SLURM cluster on one machine, inside one folder, for tests and experiments.

    deploy/local-cluster start --nodes 3 --dir /tmp/c
    eval "$(deploy/local-cluster env --dir /tmp/c)"
    sinfo
    deploy/local-cluster stop --dir /tmp/c

It requires munge and SLURM's programs with multiple-slurmd support, as in Debian, but neither root
nor systemd nor any configuration of the machine. Standard library only. With --separate-hosts,
which requires root, every node has its own network, host name and mounts, like a real one.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from io import TextIOWrapper
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "sinfo", "scancel", "srun")
PACKAGES = "slurm-wlm slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge"
SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/sbin"
MARK = "AIPERF_LOCAL_CLUSTER"
"""Environment variable of the cluster's daemons, which the daemons of its steps inherit."""
START_SECONDS = 30.0
SOCKET_LIMIT = 107
SEPARATE = "separate-hosts"
"""File with the prefix of the nodes' addresses if each node is a separate host."""
MOST_HOSTS = 200

_DAEMONS: list[subprocess.Popen[bytes]] = []
"""Started daemons: Python warns about a process object that is deleted while the process runs."""

CONFIGURATION = """\
ClusterName=local
SlurmctldHost={host}({address})
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
TmpFS={folder}/tmp/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd.%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
PropagateResourceLimits=NONE
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
MailProg=/bin/true
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,sched_min_interval=0
ReturnToService=2
JobRequeue=1
SlurmctldTimeout=10
SlurmdTimeout={slurmd_timeout}
InactiveLimit=0
KillWait=3
MinJobAge=300
MessageTimeout=5
BatchStartTimeout=10
MaxArraySize=10001
MaxJobCount=20000
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/log/jobcomp.txt
{gres_types}
NodeName=DEFAULT CPUs={cpus} Boards=1 SocketsPerBoard=1 CoresPerSocket={cpus} ThreadsPerCore=1 \
RealMemory=4096 State=UNKNOWN {gres}
{nodes}
PartitionName=bench Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=short Nodes=ALL Default=NO MaxTime=5 State=UP
"""


class ClusterError(Exception):
    """The cluster cannot be started or stopped; the message is one line."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Execute one command and return its exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # Whatever the locale, a folder's name is printed.
            stream.reconfigure(errors="backslashreplace")
    parser = argparse.ArgumentParser(prog="local-cluster", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name, help_text in (
        ("start", "start a cluster"),
        ("stop", "stop the cluster and everything that runs on it"),
        ("env", "print the environment variables that clients need"),
    ):
        command = commands.add_parser(name, help=help_text)
        command.add_argument("--dir", type=Path, required=True, help="the cluster's folder")
        if name == "start":
            command.add_argument("--nodes", type=int, default=3)
            command.add_argument("--cpus", type=int, default=8, help="nominal CPUs per node")
            command.add_argument("--gpus", type=int, default=0, help="nominal GPUs per node")
            command.add_argument(
                "--separate-hosts",
                action="store_true",
                help="give each node its own network and host name; requires root and ip",
            )
    options = parser.parse_args(arguments)
    folder = options.dir.resolve()
    try:
        if options.command == "start":
            separate = options.separate_hosts
            start(folder, options.nodes, cpus=options.cpus, gpus=options.gpus, separate=separate)
        elif options.command == "stop":
            stop(folder)
        if options.command != "stop":
            sys.stdout.write("".join(f"export {k}={v}\n" for k, v in environment(folder).items()))
    except ClusterError as error:
        sys.stderr.write(f"local-cluster: {error}\n")
        return 1
    return 0


def missing_programs() -> list[str]:
    """Return the required programs that are not installed."""
    return [name for name in PROGRAMS if _where(name) is None]


def environment(folder: Path) -> dict[str, str]:
    """Return the environment variables by which clients find the cluster."""
    return {"SLURM_CONF": str(folder / "slurm.conf")}


def start(
    folder: Path, nodes: int, *, cpus: int = 8, gpus: int = 0, separate: bool = False
) -> None:
    """Start a cluster and wait until all of its nodes are idle.

    Args:
        folder: folder of all files.
        nodes: number of nodes.
        cpus: nominal number of CPUs per node.
        gpus: nominal number of GPUs per node.
        separate: whether each node is a separate host.

    Raises:
        ClusterError: programs are missing, the folder is in use, or a daemon does not start; no
            process is left running.
    """
    if missing := missing_programs():
        raise ClusterError(f"no {', '.join(missing)}; on Debian: apt-get install {PACKAGES}")
    if nodes < 1:
        raise ClusterError(f"--nodes {nodes}: a cluster has at least 1 node")
    if len(f"{folder}/munge.sock") > SOCKET_LIMIT:
        raise ClusterError(f"the name of {folder} is too long for a socket; use a shorter one")
    if _daemons(folder):
        raise ClusterError(f"a cluster runs in {folder} already; stop it first")
    if separate and (os.getuid() != 0 or _where("ip") is None):
        raise ClusterError("--separate-hosts needs root and the program ip (apt: iproute2)")
    _make_folders(folder)
    try:
        network = _make_hosts(folder, nodes) if separate else None
        _configure(folder, nodes, cpus, gpus, network)
        _start_daemons(folder, nodes)
        _wait(folder, nodes)
    except BaseException:
        stop(folder)
        raise


def stop(folder: Path) -> None:
    """Stop the cluster's daemons and all processes that they have started."""
    daemons = _daemons(folder)
    # Steps outlive their slurmd, and tasks their step: the daemons end first, because they would
    # start more processes, then their descendants.
    members = [*daemons, *_descendants(daemons)]
    for pid in members:
        _signal(pid, signal.SIGTERM)
    end = time.monotonic() + 2.0
    while time.monotonic() < end and any(_alive(pid) for pid in members):
        time.sleep(0.02)
    left = [pid for pid in {*members, *_daemons(folder)} if _alive(pid)]
    for pid in [*left, *_descendants(left)]:
        _signal(pid, signal.SIGKILL)
    for process in _DAEMONS:
        if process.pid in members:
            process.wait()
    _DAEMONS[:] = [process for process in _DAEMONS if process.poll() is None]
    _remove_hosts(folder)


def start_slurmd(folder: Path, node: str) -> int:
    """Start one node's daemon; return its PID."""
    command = ["slurmd", "-D", "-N", node, "-f", str(folder / "slurm.conf")]
    if (folder / SEPARATE).exists():
        program = _where("slurmd") or "slurmd"
        script = f'hostname {node}; exec {program} "$@"'
        host = ["ip", "netns", "exec", _host(folder, node), "unshare", "--uts", "--mount"]
        command = [*host, "sh", "-c", script, *command]
    return _spawn(folder, node, command)


def cut_link(folder: Path, node: str) -> None:
    """Disconnect a separate host from the network; its processes continue."""
    _ip("link", "set", _link(folder, node), "down")


def heal_link(folder: Path, node: str) -> None:
    """Reconnect a separate host to the network."""
    _ip("link", "set", _link(folder, node), "up")


def _make_hosts(folder: Path, nodes: int) -> str:
    """Create a bridge and a network namespace per node; return the prefix of their addresses."""
    if nodes > MOST_HOSTS:
        raise ClusterError(f"--nodes {nodes}: there are addresses for {MOST_HOSTS} separate hosts")
    taken = _ip("-brief", "address")
    network = next((n for i in range(256) if (n := f"10.77.{i}.") not in taken), None)
    if network is None:
        raise ClusterError("all networks 10.77.x.0 are in use")
    (folder / SEPARATE).write_text(f"{network}\n", "utf-8")
    bridge = _tag(folder)
    _ip("link", "add", "name", bridge, "type", "bridge")
    _ip("address", "add", f"{network}1/24", "dev", bridge)
    _ip("link", "set", bridge, "up")
    for number in range(1, nodes + 1):
        host, link = _host(folder, f"n{number}"), _link(folder, f"n{number}")
        _ip("netns", "add", host)
        _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", host)
        _ip("link", "set", link, "master", bridge, "up")
        _ip("-n", host, "address", "add", f"{network}{10 + number}/24", "dev", "eth0")
        _ip("-n", host, "link", "set", "eth0", "up")
        _ip("-n", host, "link", "set", "lo", "up")
    return network


def _remove_hosts(folder: Path) -> None:
    if not (folder / SEPARATE).exists():
        return
    with contextlib.suppress(ClusterError):  # Nothing was created yet.
        for line in _ip("netns", "list").splitlines():
            if line.startswith(f"{_tag(folder)}-"):
                _ip("netns", "delete", line.split()[0])  # Its end of the link goes with it.
        _ip("link", "delete", _tag(folder))
    (folder / SEPARATE).unlink()


def _tag(folder: Path) -> str:
    """Return the name of the cluster's bridge, the prefix of its hosts' names."""
    return "ac" + hashlib.sha256(str(folder).encode()).hexdigest()[:6]


def _host(folder: Path, node: str) -> str:
    return f"{_tag(folder)}-{node}"


def _link(folder: Path, node: str) -> str:
    return f"{_tag(folder)}{node}"


def _ip(*arguments: str) -> str:
    """Run ip and return its output. Raises ClusterError with its message."""
    program = _where("ip") or "ip"
    done = subprocess.run(
        [program, *arguments],
        capture_output=True,
        encoding="locale",
        errors="backslashreplace",
        check=False,
    )
    if done.returncode != 0:
        raise ClusterError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def start_slurmctld(folder: Path, *, clean: bool = False) -> int:
    """Start the controller, from its saved state unless ``clean``; return its PID."""
    command = ["slurmctld", "-D", "-f", str(folder / "slurm.conf"), *(["-c"] if clean else [])]
    return _spawn(folder, "slurmctld", command)


def pid_of(folder: Path, daemon: str) -> int:
    """Return the PID of ``slurmctld``, ``munged`` or a node's slurmd."""
    return int((folder / "pids" / daemon).read_text("utf-8"))


def _make_folders(folder: Path) -> None:
    for name in ("state", "spool", "run", "log", "pids", "tmp"):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir(parents=True)
    folder.chmod(0o755)  # munged rejects a folder that others may write to.


def _configure(folder: Path, nodes: int, cpus: int, gpus: int, network: str | None) -> None:
    host = socket.gethostname().partition(".")[0]
    ports = _free_ports(nodes + 1)
    lines = []
    for number in range(1, nodes + 1):
        (folder / "tmp" / f"n{number}").mkdir()  # PMIx keeps files of each node there.
        where = f"NodeHostname={host} NodeAddr=127.0.0.1"
        if network is not None:
            where = f"NodeHostname=n{number} NodeAddr={network}{10 + number}"
        lines.append(f"NodeName=n{number} {where} Port={ports[number]}")
    text = CONFIGURATION.format(
        folder=folder,
        host=host,
        address="127.0.0.1" if network is None else f"{network}1",
        port=ports[0],
        user=pwd.getpwuid(os.getuid()).pw_name,
        cpus=cpus,
        gres_types="GresTypes=gpu",
        gres=f"Gres=gpu:h100:{gpus}" if gpus else "",
        nodes="\n".join(lines),
        # Many daemons on few cores respond late.
        slurmd_timeout=5 if nodes <= 32 else 60,
    )
    (folder / "slurm.conf").write_text(text, "utf-8")
    devices = ",".join(str(device) for device in _devices(gpus))
    gres = f"Name=gpu Type=h100 File={devices}\n" if gpus else ""
    (folder / "gres.conf").write_text(gres, "utf-8")
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n", "utf-8")
    key = folder / "munge.key"
    key.unlink(missing_ok=True)
    with os.fdopen(os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secrets.token_bytes(128))


def _devices(count: int) -> list[Path]:
    """Return device files in place of accelerators: SLURM only checks that they exist."""
    found = sorted(path for path in Path("/dev").glob("tty[0-9]*") if path.is_char_device())
    if len(found) < count:
        raise ClusterError(f"--gpus {count}: this machine has device files for {len(found)} only")
    return found[:count]


def _start_daemons(folder: Path, nodes: int) -> None:
    munge = folder / "munge.sock"
    command = ["munged", "--foreground", "--force", f"--socket={munge}"]
    command += [f"--key-file={folder}/munge.key", f"--pid-file={folder}/run/munged.pid"]
    command += [f"--log-file={folder}/log/munged.log", f"--seed-file={folder}/run/munged.seed"]
    _spawn(folder, "munged", command)
    end = time.monotonic() + START_SECONDS
    while not munge.exists():
        if time.monotonic() > end:
            raise ClusterError(f"munged does not start; see {folder}/log/munged.out")
        time.sleep(0.01)
    start_slurmctld(folder, clean=True)
    for number in range(1, nodes + 1):
        start_slurmd(folder, f"n{number}")


def _spawn(folder: Path, name: str, command: list[str]) -> int:
    program = _where(command[0])
    if program is None:
        raise ClusterError(f"no {command[0]} on this machine")
    with (folder / "log" / f"{name}.out").open("ab") as output:
        process = subprocess.Popen(
            [program, *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=folder,
            start_new_session=True,
            env={**os.environ, **environment(folder), MARK: str(folder)},
        )
    _DAEMONS.append(process)
    (folder / "pids" / name).write_text(f"{process.pid}\n", "utf-8")
    return process.pid


def _wait(folder: Path, nodes: int) -> None:
    """Wait until all nodes are idle."""
    end = time.monotonic() + START_SECONDS + nodes / 20.0
    said = ""
    while time.monotonic() < end:
        done = subprocess.run(
            ["sinfo", "--noheader", "--partition=bench", "--states=idle", "--format=%D"],
            capture_output=True,
            encoding="locale",
            errors="backslashreplace",
            check=False,
            env={**os.environ, **environment(folder)},
        )
        if done.stdout.strip() == str(nodes):
            return
        said = done.stderr.strip() or f"{done.stdout.strip() or 0} of {nodes} nodes are idle"
        time.sleep(0.05)
    raise ClusterError(f"the cluster does not start: {said}; see {folder}/log")


def _free_ports(count: int) -> list[int]:
    """Return ports that are currently unused."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


def _where(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")


def _daemons(folder: Path) -> list[int]:
    """Return the processes with the cluster's variable: its daemons and their steps."""
    wanted = f"{MARK}={folder}".encode()
    found = []
    for pid in _processes():
        with contextlib.suppress(OSError):  # It has ended, or belongs to another user.
            if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def _descendants(pids: Sequence[int]) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid in _processes():
        with contextlib.suppress(OSError, ValueError):
            stat = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace")
            parent = int(stat.rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(pid)
    found: list[int] = []
    queue = list(pids)
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return [pid for pid in dict.fromkeys(found) if pid not in pids]


def _processes() -> Iterator[int]:
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and int(path.name) != os.getpid():
            yield int(path.name)


def _alive(pid: int) -> bool:
    """Return whether the process runs and is not a zombie."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # If it is a child of this process.
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


if __name__ == "__main__":
    raise SystemExit(main())
