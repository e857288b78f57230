"""Table of the nodes of a run: the work of their replicas, and their telemetry."""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean

from aiperf_hpc.formatting import duration, percent, si, size
from aiperf_hpc.results.report.document import Report
from aiperf_hpc.results.report.parts import ReplicaReport, TrialReport
from aiperf_hpc.results.report.telemetry import NodeReport
from aiperf_hpc.results.table import NONE, Table, optional

MOST_NODES = 100
"""Maximum number of nodes on the page; ``report.json`` has all."""


def node_table(document: Report) -> Table:
    """Return a row per node; columns without any value are omitted.

    A trial counts on the node of its first rank, a replica on that of its last attempt's.
    """
    telemetry = {node.host: node for node in document.telemetry.nodes} if document.telemetry else {}
    replicas: defaultdict[str, list[ReplicaReport]] = defaultdict(list)
    for replica in document.replicas:
        if replica.machine is not None:
            replicas[replica.machine.host].append(replica)
    trials: defaultdict[str, list[TrialReport]] = defaultdict(list)
    for trial in document.trials:
        if trial.host is not None:
            trials[trial.host].append(trial)
    elapsed = document.score.elapsed_seconds
    rows = [
        {
            "Node": host,
            **_work(replicas.get(host, []), trials.get(host, []), elapsed),
            **_telemetry(telemetry.get(host)),
        }
        for host in dict.fromkeys((*replicas, *trials, *telemetry))
    ]
    columns = [name for name in (rows[0] if rows else ()) if any(r[name] != NONE for r in rows)]
    return Table(tuple(columns), tuple(tuple(row[name] for name in columns) for row in rows))


def _work(
    replicas: list[ReplicaReport], trials: list[TrialReport], elapsed: float
) -> dict[str, str]:
    done = sum(trial.operations for trial in trials)
    busy = [replica.time.train_evaluate_fraction for replica in replicas]
    return {
        "Replicas": f"{len(replicas):,}",
        "Trials": f"{len(trials):,}" if trials else NONE,
        "OPS": si(done / elapsed, "OPS") if trials and elapsed > 0.0 else NONE,
        "Train and evaluate": percent(fmean(busy), 1) if busy else NONE,
    }


def _telemetry(node: NodeReport | None) -> dict[str, str]:
    def value(name: str) -> float | None:
        return None if node is None else getattr(node, name)

    def bytes_of(name: str) -> str:
        return optional(lambda number: size(int(number)), value(name))

    return {
        "Sampled": optional(duration, value("sampled_seconds")),
        "CPU": optional("{:.1f}%".format, value("cpu_percent")),
        "Accelerators": optional("{:.1f}%".format, value("accelerator_percent")),
        "Max. memory": bytes_of("max_memory_bytes"),
        "Max. temperature": optional("{:.0f} °C".format, value("max_celsius")),
        "Mean power": optional(lambda watts: si(watts, "W"), value("watts")),
        "Energy": optional(lambda joules: si(joules, "J"), value("joules")),
        "Network": bytes_of("network_bytes"),
        "Disk": bytes_of("disk_bytes"),
    }
