"""Which trials are executed again: a drawing that can be repeated, by a seed that is said.

The K trials are those for which the SHA-256 of seed, newline and name is smallest.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from aiperf_hpc.errors import reason_of
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.untrusted.files import bytes_inside

SIGNATURE_BYTES = 65_536
"""The largest signature that is read; one by Ed25519 has some 400 bytes."""


@dataclass(frozen=True, slots=True)
class Seed:
    """What a drawing follows from."""

    text: str
    origin: str
    """Where it is from, in words."""


def seed_for(paths: RunPaths, given: str | None) -> Seed:
    """Return the seed that is given, or that of the run's signature, or else a new one."""
    if given is not None:
        return Seed(given, "as given")
    try:
        signature = bytes_inside(paths.root, paths.signature, SIGNATURE_BYTES)
    except FileNotFoundError:
        return Seed(secrets.token_hex(8), "chosen now; the run is not signed")
    except OSError as error:
        return Seed(secrets.token_hex(8), f"chosen now; the run's signature: {reason_of(error)}")
    # Without white space, which may be changed and leaves the signature as it is.
    digest = hashlib.sha256(b"".join(signature.split())).hexdigest()
    return Seed(digest, "of the run's signature")


def drawn(trials: Iterable[str], count: int, seed: str) -> list[str]:
    """Return ``count`` of the trials, or all if there are no more, in the order of the drawing."""
    return sorted(trials, key=lambda trial: _place(seed, trial))[:count]


def chance(trials: int, wrong: int, drawn: int) -> float:
    """Return the probability that a drawing has one of the wrong trials at least.

    Hypergeometric: 1 - C(trials - wrong, drawn) / C(trials, drawn).
    """
    drawn = min(drawn, trials)
    return 1.0 - math.comb(trials - wrong, drawn) / math.comb(trials, drawn)


def _place(seed: str, trial: str) -> bytes:
    return hashlib.sha256(f"{seed}\n{trial}".encode()).digest()
