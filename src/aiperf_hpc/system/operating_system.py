"""What a process runs on: distribution, kernel, container and the maker of the machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path

from aiperf_hpc.system.description import OperatingSystem
from aiperf_hpc.system.storage import mounts
from aiperf_hpc.system.tools import ROOT, AbsentError, Probe, text_of, text_or_none

_DMI = "sys/class/dmi/id"
_IMAGES = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")
"""The variables by which Apptainer names the image, and by its earlier name."""


def operating_system(
    root: Path = ROOT, environment: Mapping[str, str] = os.environ
) -> OperatingSystem:
    """Return what the process runs on whose machine's files are below ``root``."""
    probe = Probe(OSError)
    read = probe.read
    return OperatingSystem(
        name=read("name", lambda: _name(root)),
        kernel=platform.release(),
        container=read("container", lambda: container(root, environment)),
        container_image=read("container_image", lambda: _image(environment)),
        hardware=read("hardware", lambda: _hardware(root)),
        absent=probe.absent,
    )


def container(root: Path, environment: Mapping[str, str]) -> str:
    """Return what contains the process. Raises AbsentError where no mark of one is found."""
    if any(name in environment for name in _IMAGES) or (root / ".singularity.d").exists():
        return "apptainer"
    if "enroot" in _root_mount(root):
        return "enroot"
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "kubernetes"
    if (root / "run/.containerenv").exists():
        return "podman"
    if (root / ".dockerenv").exists():
        return "docker"
    raise AbsentError("no mark of docker, podman, apptainer, enroot or kubernetes")


def _root_mount(root: Path) -> str:
    """Return all that the kernel says of what is mounted as the root."""
    found = [str(mount) for mount in mounts(root) if mount.point == "/"]
    return " ".join(found)


def _image(environment: Mapping[str, str]) -> str:
    for name in _IMAGES:
        if environment.get(name):
            return environment[name]
    raise AbsentError("no container tells its image")


def _name(root: Path) -> str:
    for file in ("etc/os-release", "usr/lib/os-release"):
        for line in (text_or_none(root / file) or "").splitlines():
            if line.startswith("PRETTY_NAME="):
                return line.partition("=")[2].strip("\"'")
    raise AbsentError("/etc/os-release names none")


def _hardware(root: Path) -> str:
    folder = root / _DMI
    if folder.is_dir():
        return f"{text_of(folder / 'sys_vendor')} {text_of(folder / 'product_name')}".strip()
    if tree := text_or_none(root / "proc/device-tree/model"):
        return tree
    raise AbsentError("the firmware tells the kernel no name")
