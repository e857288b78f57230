"""One-line texts of a run and a trial."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from aiperf_hpc.formatting import duration, few, in_words, quality
from aiperf_hpc.objective import QUALITY_METRICS
from aiperf_hpc.results.views.quantities import View, quantities_in
from aiperf_hpc.results.views.run_view import RunState, RunStatus
from aiperf_hpc.run.history import Trial
from aiperf_hpc.streams import width

NAMED = 4
"""Maximum number of replicas named in one line."""
OVER = ("ended", "done", "failed")
"""Prefix of the final states of a replica."""


def status_line(status: RunStatus, columns: int | None = None) -> str:
    """Return a run's state in one line.

    Args:
        status: status of the run.
        columns: maximum width. Less important parts are shortened or omitted; time and score are
            always shown.
    """
    return "  ".join(fitted(status_parts(status), columns).values())


def fitted(parts: Mapping[str, Sequence[str]], columns: int | None) -> dict[str, str]:
    """Return the text of parts by their names, shortened to fit into the columns."""
    figures = [row.name for row in quantities_in(View.STATUS).values()]
    shorter = (
        ("best", 1),
        *((name, 1) for name in figures),
        *(("replicas", form) for form in range(1, NAMED + 1)),
        ("trials", 1),
        ("note", 1),
        ("time", 1),
        *((name, 2) for name in figures),
        ("replicas", NAMED + 1),
        ("best", 2),
        ("note", 2),
    )
    chosen = dict.fromkeys(parts, 0)
    for name, form in shorter:
        if columns is None or width("  ".join(_chosen(parts, chosen).values())) <= columns:
            break
        if name in parts:
            chosen[name] = min(form, len(parts[name]) - 1)
    return _chosen(parts, chosen)


def _chosen(parts: Mapping[str, Sequence[str]], chosen: Mapping[str, int]) -> dict[str, str]:
    return {name: text for name, forms in parts.items() if (text := forms[chosen[name]])}


def status_parts(status: RunStatus) -> dict[str, Sequence[str]]:
    """Return the parts of the line in order, each from its long form to its shortest."""
    now, end = duration(status.elapsed_seconds), duration(status.hours * 3600)
    label = QUALITY_METRICS[status.metric].label
    best = quality(status.best_quality, status.metric)
    ended = sum(n for s, n in status.trials_by_state.items() if s in ("completed", "stopped early"))
    return {
        "note": _note(status),
        "time": (f"{now} of {end}", now),
        **{
            each.name: _forms(heading, each.text_of(status))
            for heading, each in quantities_in(View.STATUS).items()
        },
        "best": (f"best {label} {best}{_beside(status)}", f"best {best}", ""),
        "trials": (f"trials {ended}", ""),
        "replicas": (*(_named(status, most) for most in range(NAMED, 0, -1)), _counted(status), ""),
    }


def _forms(heading: str, value: str) -> Sequence[str]:
    """Return a headline figure with its heading, and shorter; one without a heading is never
    omitted."""
    return (f"{heading} {value}", f"{heading[:3]}. {value}", "") if heading else (value,)


def _beside(status: RunStatus) -> str:
    """Return the quality of the baseline predictor in brackets."""
    found = status.baseline
    if found is None:
        return ""
    return f" ({found.predictor}: {quality(found.quality, status.metric)})"


def _note(status: RunStatus) -> Sequence[str]:
    """Return the first part: a wait or a problem."""
    if status.state is RunState.STOPPING:
        waiting = going_on(status)
        if not waiting:
            return "stopping", "stopping", "stopping"
        return f"stopping, waiting for {few(waiting)}", f"stopping, {len(waiting)} left", "stopping"
    waiting = [r.id for r in status.replicas if r.storage_waiting]
    if waiting:
        return f"{few(waiting)}: waiting for storage", "waiting for storage", "storage!"
    if status.state is RunState.QUEUED and status.clock is not None:
        queued = f"queued {duration(status.clock.queue_seconds)}"
        return f"{queued}: {status.reason}", queued, "queued"
    if status.state in (RunState.STARTING, RunState.SILENT, RunState.GONE):
        name = str(status.state)
        return f"{name}: {status.reason}" if status.reason else name, name, name
    return "", "", ""


def going_on(status: RunStatus) -> list[str]:
    """Return the replicas that have not ended."""
    return [r.id for r in status.replicas if not r.state.startswith(OVER)]


def _named(status: RunStatus, most: int) -> str:
    replicas = " ".join(f"{r.id} {r.state}" for r in status.replicas[:most])
    more = f" +{len(status.replicas) - most}" if len(status.replicas) > most else ""
    return replicas + more


def _counted(status: RunStatus) -> str:
    states = Counter(replica.state for replica in status.replicas)
    return ", ".join(f"{number} {state}" for state, number in states.most_common())


def trial_line(trial: Trial) -> str:
    """Return an ended trial in one line."""
    started, best = trial.started, trial.best
    what = in_words(started.morphisms) or "initial network"
    reached = "–" if best is None else quality(best.quality, best.quality_metric.name)
    reason = f" ({trial.reason})" if trial.reason else ""
    parent = f"{started.parent} + " if started.parent else ""
    batch = f"batch {started.hyperparameters.batch_size}"
    return (
        f"  {trial.id}  round {started.round} {started.phase}  {trial.state}{reason}  "
        f"{reached} after {len(trial.evaluations)} epochs, {batch}  {parent}{what}"
    )


def short_trial_line(trial: Trial) -> str:
    """Return an ended trial in a shorter line, which begins with what matters most."""
    reached, detail = "", trial.reason
    if (best := trial.best) is not None:
        reached = f"  {quality(best.quality, best.quality_metric.name)} after"
        reached += f" {len(trial.evaluations)} epochs"
        detail = in_words(trial.started.morphisms) or "initial network"
    return f"  {trial.id}  {trial.state}{reached}  {detail}"
