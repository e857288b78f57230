"""A guest with its own kernel (user-mode-linux), which serves and mounts real NFS."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.cache import unavailable

ROOT = Path(__file__).parents[2]
BOOT = Path(__file__).with_name("boot")
PROGRAMS = (
    "linux.uml", "insmod", "rpc.nfsd", "rpc.mountd", "nfsdcld", "exportfs", "rpcbind", "mount.nfs",
    "ip", "unshare", "nsenter", "mkfs.ext4",
)  # fmt: skip
MEMORY_BYTES = 768 * 2**20
Play = Callable[[str, float], dict[str, Any]]


def missing() -> str:
    """Return why no guest can be booted here, or nothing."""
    path = f"{os.environ['PATH']}:/usr/local/sbin:/usr/sbin:/sbin"
    lacking = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if lacking:
        return f"no {', '.join(lacking)} on this machine; `make nfs` installs them"
    if os.geteuid() != 0:
        return "real NFS needs root: the guest reads the host's files as who runs it"
    return ""


@pytest.fixture(scope="session")
def play() -> Iterator[Play]:
    """Play a scene in a guest of its own and return what it saw.

    Where the packages are missing tests are skipped; in CI they fail.
    """
    if message := missing():
        unavailable(message)
    folders = []

    def played(scene: str, seconds: float) -> dict[str, Any]:
        folder = Path(tempfile.mkdtemp(prefix="aiperf-nfs-"))
        folders.append(folder)
        console = _boot(scene, folder, seconds)
        output, result = folder / "output", folder / f"{scene}.json"
        if not output.exists():
            last = " ".join(console.strip().splitlines()[-1:])
            pytest.skip(f"user-mode-linux does not boot on this machine: {last}")
        said = output.read_text("utf-8")
        assert result.exists(), f"{scene} did not come to its end:\n{said[-5000:]}"
        sys.stdout.write(result.read_text("utf-8"))
        found: dict[str, Any] = json.loads(result.read_text("utf-8"))
        return found

    yield played
    for folder in folders:
        shutil.rmtree(folder)


def _environment(folder: Path) -> dict[str, str]:
    """Return an environment in which the guest's memory is a file in a place that has room.

    That is /dev/shm by itself, which containers often give 64 MiB.
    """
    shared = Path("/dev/shm")
    if shared.is_dir() and shutil.disk_usage(shared).free > MEMORY_BYTES:
        return dict(os.environ)
    return {**os.environ, "TMPDIR": str(folder)}


def _boot(scene: str, folder: Path, seconds: float) -> str:
    """Run a guest to its end; return what its console said."""
    command = [
        "linux.uml", f"mem={MEMORY_BYTES}", "root=/dev/root", "rootfstype=hostfs",
        "rootflags=/", "ro", f"init={BOOT}", "con=null", "con0=null,fd:1", f"uml_dir={folder}",
        f"HOST_FOLDER={folder}", f"HOST_PYTHON={sys.executable}", f"HOST_TREE={ROOT}",
        f"HOST_SCENE={scene}",
    ]  # fmt: skip
    with (folder / "console").open("wb") as console:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=console, stderr=console, cwd=folder,
            env=_environment(folder), start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(seconds)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)  # All its processes: each is one of the host's.
                process.wait()
    return (folder / "console").read_text("utf-8", errors="replace")
