"""The network ports of a node: network interfaces and RDMA adapters (InfiniBand and others)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from aiperf_hpc.system.description import NetworkPort
from aiperf_hpc.system.tools import (
    ROOT,
    AbsentError,
    Probe,
    entries,
    number_of,
    text_of,
    text_or_none,
)

_LINK_LAYERS = {1: "Ethernet", 32: "InfiniBand"}
"""Link layers by the kernel's interface type (linux/if_arp.h), without the loopback's."""
_RATE = re.compile(r"([\d.]+)\s*Gb/sec")


def network_ports(root: Path = ROOT) -> tuple[NetworkPort, ...]:
    """Return the ports of adapters, followed by the network interfaces.

    Virtual interfaces, such as those of containers and bridges, are included only if they are up
    and there are no others, because they do not describe the machine.
    """
    interfaces = tuple(_interfaces(root))
    hardware = tuple(port for port in interfaces if not port.virtual)
    return (*_adapters(root), *(hardware or interfaces))


def _adapters(root: Path) -> Iterator[NetworkPort]:
    for adapter in entries(root / "sys/class/infiniband"):
        for port in entries(adapter / "ports"):
            yield _adapter_port(adapter, port)


def _adapter_port(adapter: Path, port: Path) -> NetworkPort:
    probe = Probe(OSError)
    rate = probe.read("rate", lambda: text_of(port / "rate"))
    number = _RATE.match(rate or "")
    if number is None:
        probe.absent["gigabits"] = probe.absent.get("rate", f"the kernel reports '{rate}'")
    state = text_or_none(port / "state") or "unknown"
    return NetworkPort(
        name=f"{adapter.name}/{port.name}",
        kind="InfiniBand",
        link_layer=text_or_none(port / "link_layer") or "InfiniBand",
        gigabits=None if number is None else float(number[1]),
        rate=rate,
        state=state.partition(": ")[2] or state,
        adapter=probe.read("adapter", lambda: _adapter_model(adapter)),
        firmware=probe.read("firmware", lambda: text_of(adapter / "fw_ver")),
        absent=probe.absent,
    )


def _adapter_model(adapter: Path) -> str:
    return f"{text_of(adapter / 'hca_type')} {text_or_none(adapter / 'board_id') or ''}".strip()


def _interfaces(root: Path) -> Iterator[NetworkPort]:
    for interface in entries(root / "sys/class/net"):
        if not (interface / "type").exists():  # Other files, e.g. the list of all bonds.
            continue
        layer = _LINK_LAYERS.get(number_of(interface / "type"))
        state = text_or_none(interface / "operstate") or "unknown"
        virtual = not (interface / "device").exists()
        if layer is not None and not (virtual and state == "down"):
            yield _interface(interface, layer, state, virtual)


def _interface(interface: Path, layer: str, state: str, virtual: bool) -> NetworkPort:
    probe = Probe(OSError, ValueError)
    probe.absent |= dict.fromkeys(("rate", "firmware"), "adapters report it, not interfaces")
    return NetworkPort(
        name=interface.name,
        kind="Ethernet",
        link_layer=layer,
        gigabits=probe.read("gigabits", lambda: _gigabits(interface)),
        state=state,
        adapter=probe.read("adapter", lambda: _driver(interface)),
        virtual=virtual,
        absent=probe.absent,
    )


def _gigabits(interface: Path) -> float:
    megabits = number_of(interface / "speed")
    if megabits <= 0:
        raise AbsentError("its driver reports no speed")
    return megabits / 1000


def _driver(interface: Path) -> str:
    driver = interface / "device/driver"
    if not driver.exists():
        raise AbsentError("it has no driver")
    return driver.resolve().name
