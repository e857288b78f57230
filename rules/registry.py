"""All rules, each a row: its name, its requirement and the function that checks it.

A new rule is a function in ``validity/`` or ``consistency/``, which yields its findings
(``rule.py``), and a row here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aiperf_hpc.config import RunConfig
from aiperf_hpc.rules.consistency import (
    clocks,
    files,
    graphs,
    journal_digests,
    rates,
    records,
    report,
    samples,
    score,
    study,
    trial_order,
    trials,
    witness,
)
from aiperf_hpc.rules.consistency import replicas as recorded_replicas
from aiperf_hpc.rules.consistency.evidence import Evidence
from aiperf_hpc.rules.rule import Rule
from aiperf_hpc.rules.validity import (
    dataset,
    earlier,
    error,
    precision,
    replicas,
    search,
    settings,
    software,
    timing,
)
from aiperf_hpc.rules.validity.dataset import Datasets, datasets_of
from aiperf_hpc.rules.validity.evidence import RunEvidence, config_of
from aiperf_hpc.rules.validity.precision import (
    Environment,
    Precisions,
    environment_of,
    precisions_of,
)
from aiperf_hpc.rules.validity.software import Code, code_of
from aiperf_hpc.trial import DatasetInfo


@dataclass(frozen=True, slots=True)
class Plan:
    """A run before its start."""

    config: RunConfig
    hours: float
    code: Code
    variables: Mapping[str, str]
    """The variables of the process that starts it, which its replicas may inherit."""
    dataset: DatasetInfo | None = None
    """Its dataset; None before that has been looked at."""


def _planned_datasets(plan: Plan) -> Datasets:
    found = () if plan.dataset is None else (plan.dataset,)
    return Datasets(found, plan.config.dataset.stored)


SETTINGS: Final = Rule("settings", "as both divisions fix them", settings.fixed_settings)
CLOSED_SETTINGS: Final = Rule(
    "closed settings", "those of Ren et al. 2021", settings.closed_settings
)
PRECISION: Final = Rule("precision", ">= 16 bits", precision.precision)
HOURS: Final = Rule("hours", f">= {timing.LEAST_HOURS:g} h", timing.hours)
RELEASE: Final = Rule("release", "a release, unchanged", software.release)
ENVIRONMENT: Final = Rule("environment", "nothing below the precision", precision.environment)
DATASET: Final = Rule("dataset", "ImageNet", dataset.dataset)
CONTENT: Final = Rule("content", "that of the official archives", dataset.content)
CLOCK_START: Final = Rule("start when", "first", timing.clock_start)
PLANNED_NODES: Final = Rule("nodes", "constant", replicas.planned_nodes)

CONFIGURATION: Final[Sequence[Rule[RunConfig]]] = (
    SETTINGS,
    PRECISION.on(lambda config: Precisions([config.training.precision])),
)
"""The rules of both divisions on a configuration."""
BEFORE_START: Final[Sequence[Rule[Plan]]] = (
    HOURS.on(lambda plan: plan.hours),
    RELEASE.on(lambda plan: plan.code),
    ENVIRONMENT.on(lambda plan: Environment([plan.variables], plan.config.training.precision)),
)
"""The further rules of both divisions before a start."""
BEFORE_START_ON_DATA: Final[Sequence[Rule[Plan]]] = (
    DATASET.on(_planned_datasets),
    CONTENT.on(_planned_datasets),
)

ENGINE: Final = Rule("engine", "not simulated", error.engine)
ERROR: Final = Rule("error", f"<= {error.MOST_ERROR:.0%}", error.error)
MORPHISM: Final = Rule("network morphism", ">= 1 trial of a grown one", search.morphism)
RECORDS: Final = Rule("records", "none", replicas.records)

BRIEF: Final[Sequence[Rule[RunEvidence]]] = (
    ENGINE,
    Rule("duration", "as long as requested", timing.duration),
    Rule("end", "not in the future", timing.end),
    ERROR,
    DATASET.on(datasets_of),
    CONTENT.on(datasets_of),
    SETTINGS.on(config_of),
    RELEASE.on(code_of),
    RECORDS,
)
"""The rules that are checked every second while a run lasts: none looks at each trial."""
BOTH: Final[Sequence[Rule[RunEvidence]]] = (
    *BRIEF[:-1],
    Rule("versions", "the same on all", software.versions),
    ENVIRONMENT.on(environment_of),
    PRECISION.on(precisions_of),
    Rule("initial network", f"{search.RESNET50[:8]}, ResNet-50", search.initial),
    MORPHISM,
    Rule("proposals", "each as proposed", search.proposals),
    Rule(
        "TPE",
        f"> {search.LEAST_HPO_TRIALS} of each in round {search.FIRST_HPO_ROUND}",
        search.hpo,
    ),
    Rule("weights", "of the best evaluation", error.weights),
    Rule("replicas", "as many as requested", replicas.replicas),
    Rule("heartbeats", "regular", replicas.heartbeats),
    Rule("clocks", f"<= {timing.MOST_DRIFT:g} s an hour apart", timing.clocks),
    Rule("rates", f"<= {timing.MOST_RATIO:g} times the replica's median", timing.rates),
    Rule("peaks", "<= 100%", timing.peaks),
    Rule("staging", "in the run's time", dataset.staging),
    RECORDS,
)
"""The rules of both divisions."""
CLOSED: Final[Sequence[Rule[RunEvidence]]] = (
    CLOSED_SETTINGS.on(config_of),
    Rule("hyperparameters", search.CLOSED_HYPERPARAMETERS, search.hyperparameters),
    Rule("nodes", "constant", replicas.nodes),
    Rule("accelerators", "all", replicas.accelerators),
)
"""The further rules of the closed division."""
CONSTANT_NODES: Final = Rule("constant nodes", "constant", replicas.constant_nodes)
EARLIER: Final[Sequence[Rule[RunEvidence]]] = (
    ENGINE,
    Rule("duration", f">= {timing.LEAST_HOURS:g} h", earlier.duration),
    ERROR,
    DATASET.on(datasets_of),
    Rule("initial network", "resnet50, stem imagenet, width 64", earlier.initial),
    PRECISION.on(precisions_of),
    MORPHISM,
    Rule("TPE", "more than are random", earlier.hpo),
    RECORDS,
)
"""The rules of versions without divisions."""
NO_DIVISION: Final = Rule("division", "closed or open", earlier.division)
OTHER_WORKLOADS: Final[Sequence[Rule[RunEvidence]]] = (
    Rule("workload", error.WORKLOAD, error.workload),
    ENGINE,
    RECORDS,
)
"""The rules on runs of other workloads, besides those of their own benchmarks."""

CONSISTENCY: Final[Sequence[Rule[Evidence]]] = (
    Rule("journals", "every line is a record in its place", records.journals),
    Rule("writers", "each journal is one process's, from its start to its end", records.writers),
    Rule("clocks", "UTC and monotonic times agree", clocks.clocks),
    Rule("timekeeping", "all clocks of each host, the kernel's and the file server's ran alike",
         clocks.timekeeping),
    Rule("clock", "the clock started with the first node, or when all replicas were ready",
         clocks.clock),
    Rule("heads", "journals are what the primary and the replicas saw of them while they grew",
         journal_digests.heads),
    Rule("witness", "witnesses saw the primary's journal grow, and their time is the run's",
         witness.witnesses),
    Rule("replicas", "replicas that started or ended in order left records",
         recorded_replicas.replicas),
    Rule("launches", "all replicas were launched, and each life of one has a cause",
         recorded_replicas.launches),
    Rule("config", "run.yaml is what every primary and replica had", records.config),
    Rule("dataset", "all replicas had the configured dataset", records.dataset),
    Rule("graphs", "every graph follows from the initial one by its morphisms", graphs.graphs),
    Rule("counts", "recorded operations a sample are those of the graph", graphs.counts),
    Rule("names", "names, numbers and seeds of trials and proposals follow", trials.names),
    Rule("candidates", "graphs were proposed, of weights that were there, within bounds",
         graphs.candidates),
    Rule("resumes", "trials go on only with what was interrupted", trials.resumes),
    Rule("batches", "batch sizes are configured, or halved where memory asked for it",
         trials.batches),
    Rule("samples", "each sample at most once an epoch, exactly once if evaluated",
         samples.samples),
    Rule("evaluations", "evaluations are whole, in order, within limits", samples.evaluations),
    Rule("baseline", "a trivial predictor's quality is of all validation samples, alike everywhere",
         samples.baselines),
    Rule("order", "one trial at a time on a replica, from the run's start on", trial_order.order),
    Rule("rounds", "phases and epochs as configured; the chosen kernel size is in the graph",
         trial_order.rounds),
    Rule("study", "studies were asked for and told what the journals say was tried",
         study.studies),
    Rule("trainings", "replicas trained as often as was asked for", trial_order.trainings),
    Rule("states", "trials ended as their records say", trial_order.states),
    Rule("time", "no replica spent more time than there was", trial_order.time),
    Rule("rates", "no device computed faster than it can, none as evenly as none does",
         rates.rates),
    Rule("signs", "who was at work gave signs of life", recorded_replicas.heartbeats),
    Rule("machines", "replicas are on the machines that their ranks describe",
         recorded_replicas.machines),
    Rule("score", "operations, OPS and regulated score equal the recount", score.score),
    Rule("energy", "the stated energy is the sum of the samples of each node", score.energy),
    Rule("predictions", "kept predictions are whole, and of the trials' last evaluations",
         files.predictions),
    Rule("best epochs", "checkpoints of best epochs are there, and of the best evaluations",
         files.best_epochs),
    Rule("report", "the final report is what the records give", report.report),
    Rule("result", "result.txt and result_0.txt state the recounted score, verdict and rules",
         report.statements),
    Rule("files", "the manifest names every file of the run, and each is as it was at its end",
         files.files),
    Rule("signature", "the manifest is signed, by a trusted key where one is named",
         files.signature),
)  # fmt: skip
"""What must hold for the records of a run, in the order of ``aiperf verify``."""
