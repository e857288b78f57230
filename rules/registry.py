"""The registry of all rules: the name, the requirement and the check function of each.

To add a rule, write a function in ``validity/`` or ``consistency/`` that yields its findings
(``rule.py``), and add an entry here.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
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
    search_choices,
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
    precision,
    replicas,
    result,
    search,
    settings,
    software,
    timing,
)
from aiperf_hpc.rules.validity.dataset import Datasets, datasets_of
from aiperf_hpc.rules.validity.evidence import RunEvidence
from aiperf_hpc.rules.validity.precision import (
    Environment,
    Precisions,
    environment_of,
    precisions_of,
)
from aiperf_hpc.rules.validity.software import Code, code_here, code_of
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.system.software import recorded_variables


def _planned_code(manifest: RunManifest) -> Code:
    return code_here(manifest.versions, manifest.release_changes)


def _planned_environment(manifest: RunManifest) -> Environment:
    # Replicas may inherit the variables of the process that starts the run.
    return Environment([recorded_variables(os.environ)], manifest.config.training.precision)


def _planned_datasets(manifest: RunManifest) -> Datasets:
    found = () if manifest.dataset is None else (manifest.dataset,)
    return Datasets(found, manifest.config.dataset.storage_format)


SETTINGS: Final = Rule("settings", "as fixed in both divisions", settings.fixed_settings)
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
BEFORE_START: Final[Sequence[Rule[RunManifest]]] = (
    HOURS.on(lambda manifest: manifest.hours),
    RELEASE.on(_planned_code),
    ENVIRONMENT.on(_planned_environment),
)
"""Additional rules of both divisions before the start."""
BEFORE_START_ON_DATA: Final[Sequence[Rule[RunManifest]]] = (
    DATASET.on(_planned_datasets),
    CONTENT.on(_planned_datasets),
)

ENGINE: Final = Rule("engine", "not simulated", result.engine)
ERROR: Final = Rule("error", f"<= {result.MOST_ERROR:.0%}", result.error)
MORPHISM: Final = Rule("network morphism", ">= 1 trial of a grown network", search.morphism)
RECORDS: Final = Rule("records", "none", replicas.records)

BRIEF: Final[Sequence[Rule[RunEvidence]]] = (
    ENGINE,
    Rule("duration", "as long as requested", timing.duration),
    Rule("end", "not in the future", timing.end),
    ERROR,
    DATASET.on(datasets_of),
    CONTENT.on(datasets_of),
    SETTINGS.on(lambda run: run.config),
    RELEASE.on(code_of),
    RECORDS,
)
"""Rules that are checked every second during a run: none of them reads every trial."""
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
        f"> {search.LEAST_HPO_TRIALS} from round {search.FIRST_HPO_ROUND} on",
        search.hpo,
    ),
    Rule("weights", "of the best evaluation", result.weights),
    Rule("replicas", "as many as requested", replicas.replicas),
    Rule("heartbeats", "regular", replicas.heartbeats),
    Rule("clocks", f"<= {timing.MOST_DRIFT:g} s per hour", timing.clocks),
    Rule("rates", f"<= {timing.MOST_RATIO:g} times the replica's median", timing.rates),
    Rule("peaks", "<= 100%", timing.peaks),
    Rule("staging", "copied during the run", dataset.staging),
    RECORDS,
)
"""The rules of both divisions."""
CLOSED: Final[Sequence[Rule[RunEvidence]]] = (
    CLOSED_SETTINGS.on(lambda run: run.config),
    Rule("hyperparameters", search.CLOSED_HYPERPARAMETERS, search.hyperparameters),
    Rule("nodes", "constant", replicas.nodes),
    Rule("accelerators", "all", replicas.accelerators),
)
"""Additional rules of the closed division."""
ASSURANCE: Final = Rule("evidence", "re-executed, or signed and witnessed", result.assurance)
"""The rule of the closed division that only a verifier can check, after the run was signed."""
CONSTANT_NODES: Final = Rule("constant nodes", "constant", replicas.constant_nodes)
EARLIER: Final[Sequence[Rule[RunEvidence]]] = (
    ENGINE,
    Rule("duration", f">= {timing.LEAST_HOURS:g} h", timing.lasted),
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
    Rule("workload", result.WORKLOAD, result.workload),
    ENGINE,
    RECORDS,
)
"""The rules on runs of other workloads, in addition to the rules of their benchmarks."""

CONSISTENCY: Final[Sequence[Rule[Evidence]]] = (
    Rule("journals", "no malformed or out-of-order records", records.journals),
    Rule("writers", "each journal has one writer, from its start to its end", records.writers),
    Rule("clocks", "UTC and monotonic times agree", clocks.clocks),
    Rule("timekeeping", "all clocks of each host, the kernel and the file server agree",
         clocks.timekeeping),
    Rule("clock", "the run's clock started with the first node, or when all replicas were ready",
         clocks.clock),
    Rule("digests", "journals match the digests that were recorded while they grew",
         journal_digests.digests),
    Rule("witness", "the journal and its times match the witnesses' statements",
         witness.witnesses),
    Rule("replicas", "replicas that started or ended cleanly left records",
         recorded_replicas.replicas),
    Rule("launches", "all replicas were launched, and each restart has a cause",
         recorded_replicas.launches),
    Rule("config", "run.yaml is the file that every primary and replica read", records.config),
    Rule("dataset", "all replicas had the configured dataset", records.dataset),
    Rule("graphs", "each graph is derived from the initial one by its morphisms", graphs.graphs),
    Rule("counts", "recorded operations per sample are those of the graph", graphs.counts),
    Rule("names", "names and numbers are complete, and seeds follow from the run's seed",
         trials.names),
    Rule("candidates", "graphs were proposed within bounds, from existing weights",
         graphs.candidates),
    Rule("search", "sampled proposals are what the searcher chose from the records it had read",
         search_choices.choices),
    Rule("resumes", "only interrupted trials are resumed", trials.resumes),
    Rule("batches", "batch sizes are configured, or halved to fit in memory",
         trials.batches),
    Rule("samples", "samples are used at most once per epoch, and exactly once per evaluation",
         samples.samples),
    Rule("evaluations", "evaluations are complete, in order and within limits",
         samples.evaluations),
    Rule("baseline", "the baseline covers all validation samples and agrees on all replicas",
         samples.baselines),
    Rule("order", "one trial at a time per replica, after the run's start", trial_order.order),
    Rule("rounds", "phases and epochs as configured; the chosen kernel size is in the graph",
         trial_order.rounds),
    Rule("study", "Optuna's studies match the trials of the journals",
         study.studies),
    Rule("trainings", "replicas trained as often as requested", trial_order.trainings),
    Rule("states", "trials ended in the recorded states", trial_order.states),
    Rule("time", "no replica used more time than elapsed", trial_order.time),
    Rule("rates", "rates are below each device's peak and vary plausibly",
         rates.rates),
    Rule("heartbeats", "active processes recorded heartbeats", recorded_replicas.heartbeats),
    Rule("machines", "replicas ran on the machines that their ranks describe",
         recorded_replicas.machines),
    Rule("score", "operations, OPS and regulated score equal the recomputed ones", score.score),
    Rule("energy", "the stated energy is the sum of the samples of each node", score.energy),
    Rule("predictions", "saved predictions are complete and belong to the trials' last evaluations",
         files.predictions),
    Rule("best epochs", "checkpoints of the best epochs exist and match the best evaluations",
         files.best_epochs),
    Rule("shapes", "stored weights have the shapes of their graphs", files.shapes),
    Rule("report", "the final report matches the records", report.report),
    Rule("result", "result.txt and result_0.txt state the recomputed score, verdict and rules",
         report.statements),
    Rule("files", "the manifest lists every file of the run, and none has changed since the end",
         files.files),
    Rule("signature", "the manifest is signed, with a trusted key if one is given",
         files.signature),
)  # fmt: skip
"""The rules on the consistency of a run's records, in the order of ``aiperf verify``."""
