"""The history of a run: its journals replayed into trials, replicas and proposals.

It is the only read model: search workers, the status, the report, the score and the verification
all use a ``RunHistory``.
"""

from aiperf_hpc.run.history.query import RunHistory
from aiperf_hpc.run.history.replicas import ReplicaHistory
from aiperf_hpc.run.history.state import PRIMARY
from aiperf_hpc.run.history.tail import no_collections
from aiperf_hpc.run.history.telemetry import PartEnergy, Point, SamplerHistory, counted
from aiperf_hpc.run.history.trials import Evaluation, Proposal, Trial

__all__ = [
    "PRIMARY",
    "Evaluation",
    "PartEnergy",
    "Point",
    "Proposal",
    "ReplicaHistory",
    "RunHistory",
    "SamplerHistory",
    "Trial",
    "counted",
    "no_collections",
]
