"""Metrics of runs in Prometheus format."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from starlette.types import ASGIApp, Receive, Scope, Send

from aiperf_hpc.results.views.quantities import View, quantities_in
from aiperf_hpc.results.views.run_view import RunStatus
from aiperf_hpc.results.views.telemetry import NodeStatus
from aiperf_hpc.service.access import reporting
from aiperf_hpc.service.runs import RunList
from aiperf_hpc.service.submission import Queue

K = TypeVar("K", bound=tuple[str, ...])

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Upper limits of the response time histogram."""
STREAM = "/events/stream"


class Measured:
    """Middleware that counts requests and measures response times, except for event streams."""

    def __init__(self, app: ASGIApp, registry: CollectorRegistry) -> None:
        self._app = app
        self._requests = Counter(
            "aiperf_http_requests",
            "Requests that were answered, by method and status.",
            ["method", "status"],
            registry=registry,
        )
        self._seconds = Histogram(
            "aiperf_http_request_seconds",
            "Seconds until an answer began.",
            buckets=SECONDS,
            registry=registry,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].endswith(STREAM):
            await self._app(scope, receive, send)
            return

        method = scope["method"] if scope["method"] in METHODS else "other"
        with self._seconds.time():
            counting = reporting(send, lambda status: self._requests.labels(method, status).inc())
            await self._app(scope, receive, counting)


METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def new_registry() -> CollectorRegistry:
    """Return a registry with the metrics of the process."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return registry


def exposition(
    registry: CollectorRegistry,
    listed: RunList,
    statuses: Mapping[str, RunStatus],
    queue: Queue | None,
) -> bytes:
    """Return all metrics as text.

    Args:
        registry: metrics of the service itself.
        listed: summaries of all runs.
        statuses: statuses of active runs by name.
        queue: submissions, if the service accepts them.
    """
    once = CollectorRegistry()
    once.register(_Families(_families(listed, statuses, queue)))
    return generate_latest(registry) + generate_latest(once)


class _Families:
    """Collector of metrics with fixed values."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> list[Metric]:
        return self._families


def _families(
    listed: RunList, statuses: Mapping[str, RunStatus], queue: Queue | None
) -> Iterator[Metric]:
    states = Tally(str(row.state) for row in listed.runs)
    states["loading"] = len(listed.loading)
    states["unreadable"] = len(listed.unreadable)
    yield _metric("aiperf_runs", "Runs by state.", {(k,): v for k, v in states.items()}, ["state"])
    yield _metric(
        "aiperf_run_info",
        "A run's description in labels; always 1.",
        {(r.name, r.run_id, r.preset, r.workload, r.dataset, r.launcher): 1 for r in listed.runs},
        ["run", "run_id", "preset", "workload", "dataset", "launcher"],
    )
    for quantity in quantities_in(View.METRICS).values():
        family = CounterMetricFamily if quantity.counter else GaugeMetricFamily
        values = {(run.name,): quantity.read(run) for run in listed.runs}
        name = f"aiperf_run_{quantity.metric_name}"
        yield _metric(name, quantity.help, values, ["run"], family)
    yield from _of_statuses(statuses)
    yield from _of_telemetry(statuses)
    if queue is not None:
        tally = Tally(str(each.state) for each in queue.queue)
        by_state = {(state,): number for state, number in tally.items()}
        yield _metric("aiperf_submissions", "Submissions by state.", by_state, ["state"])


STATUS_METRICS: tuple[tuple[str, str, Callable[[RunStatus], float | None]], ...] = (
    ("remaining_seconds", "Seconds to the end.", lambda s: s.remaining_seconds),
    (
        "queue_seconds",
        "Seconds in the queue until the first node, which are not charged.",
        lambda s: None if s.clock is None else s.clock.queue_seconds,
    ),
    ("problems", "Problems of the records.", lambda s: len(s.problems)),
    (
        "storage_waiting",
        "The primary and replicas that wait for storage now.",
        lambda s: sum(each.waiting for each in s.storage),
    ),
)
"""Metrics of an active run: name, description and source of the value."""


def _of_statuses(statuses: Mapping[str, RunStatus]) -> Iterator[Metric]:
    replicas: Tally[tuple[str, ...]] = Tally()
    for run, status in statuses.items():
        replicas.update((run, replica.state) for replica in status.replicas)
    yield _metric("aiperf_run_replicas", "Replicas by state.", replicas, ["run", "state"])
    trials = {
        (run, state): number
        for run, status in statuses.items()
        for state, number in status.trials_by_state.items()
    }
    yield _metric("aiperf_run_trials", "Trials by state.", trials, ["run", "state"])
    for name, text, value in STATUS_METRICS:
        told = {(run,): value(status) for run, status in statuses.items()}
        yield _metric(f"aiperf_run_{name}", text, told, ["run"])
    name, text = "aiperf_run_storage_wait_seconds", "Seconds waited for storage, in all."
    waited = {(run,): sum(each.seconds for each in s.storage) for run, s in statuses.items()}
    yield _metric(name, text, waited, ["run"], CounterMetricFamily)


NODE_METRICS: tuple[tuple[str, str, Callable[[NodeStatus], float | None]], ...] = (
    ("cpu_ratio", "Use of all logical CPUs, 0 to 1.", lambda n: _ratio(n.cpu_percent)),
    ("accelerator_ratio", "Mean use of accelerators.", lambda n: _ratio(n.accelerator_percent)),
    ("memory_bytes", "Memory in use by all processes.", lambda n: n.memory_bytes),
    ("power_watts", "Power of all metered components.", lambda n: n.watts),
    ("disk_read_bytes_per_second", "Read from disks.", lambda n: n.disk_read_rate),
    ("disk_written_bytes_per_second", "Written to disks.", lambda n: n.disk_written_rate),
    ("network_received_bytes_per_second", "Received.", lambda n: n.network_received_rate),
    ("network_sent_bytes_per_second", "Sent.", lambda n: n.network_sent_rate),
)
"""Metrics of a node's latest sample: name, description and source of the value."""


def _of_telemetry(statuses: Mapping[str, RunStatus]) -> Iterator[Metric]:
    telemetry = {run: each.telemetry for run, each in statuses.items() if each.telemetry}
    for name, text, value in NODE_METRICS:
        told = {
            (run, node.host): value(node) for run, each in telemetry.items() for node in each.nodes
        }
        yield _metric(f"aiperf_node_{name}", text, told, ["run", "host"])
    name, text = "aiperf_run_energy_joules", "Energy of all metered components."
    energy = {(run, str(t.energy.label)): t.energy.joules for run, t in telemetry.items()}
    yield _metric(name, text, energy, ["run", "label"], CounterMetricFamily)


def _ratio(percent: float | None) -> float | None:
    return None if percent is None else percent / 100.0


def _metric(
    name: str,
    text: str,
    values: Mapping[K, float | None],
    labels: list[str],
    family: type[GaugeMetricFamily | CounterMetricFamily] = GaugeMetricFamily,
) -> Metric:
    """Return a metric with the labels that have a value."""
    metric = family(name, text, labels=labels)
    for key, value in values.items():
        if value is not None:
            metric.add_metric(list(key), value)
    return metric
