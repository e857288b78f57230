"""The history of a run: its journals replayed into trials, replicas and proposals.

It is the only read model: search workers, the status, the report, the score and the verification
all use a ``RunHistory``.
"""

from aiperf_hpc.run.history.query import RunHistory as RunHistory
from aiperf_hpc.run.history.replicas import ReplicaHistory as ReplicaHistory
from aiperf_hpc.run.history.state import PRIMARY as PRIMARY
from aiperf_hpc.run.history.tail import no_collections as no_collections
from aiperf_hpc.run.history.telemetry import PartEnergy as PartEnergy
from aiperf_hpc.run.history.telemetry import Point as Point
from aiperf_hpc.run.history.telemetry import SamplerHistory as SamplerHistory
from aiperf_hpc.run.history.telemetry import counted as counted
from aiperf_hpc.run.history.trials import Evaluation as Evaluation
from aiperf_hpc.run.history.trials import Proposal as Proposal
from aiperf_hpc.run.history.trials import Trial as Trial
