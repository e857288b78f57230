"""The settings that each division fixes, declares or leaves free.

A setting that is in neither table, including one added by a later version, is fixed: official runs
must use its default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from pydantic import BaseModel

from aiperf_hpc.config import Integers, Reals, RunConfig
from aiperf_hpc.host.schedulers import SCHEDULERS
from aiperf_hpc.rules.rule import Findings, Found
from aiperf_hpc.trial import Value

Settings = Mapping[str, Any]
"""Plain values by their dotted keys, as for ``--set``."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The allowed values of a setting."""

    words: str
    """Description of the allowed values, for messages."""
    admits: Callable[[Any], bool]


def _one_of(*values: object) -> Limit:
    return Limit(f"one of {', '.join(map(str, values))}", lambda value: value in values)


def _exactly(wanted: object) -> Limit:
    return Limit(said(wanted), lambda value: value == wanted)


def _at_most(most: float) -> Limit:
    return Limit(f"at most {most:g}", lambda value: value <= most)


ANY: Final = Limit("any", lambda _: True)

FREE: Final[Mapping[str, Limit]] = {
    # Names, and settings that affect results only randomly.
    "preset": ANY,
    "seed": ANY,
    "training.keep_predictions": ANY,
    # The location of the data and the input pipeline, whose time is charged.
    "dataset.path": ANY,
    "dataset.parallel_transforms": ANY,
    "dataset.cache": ANY,
    "dataset.cache_path": ANY,
    "dataset.decoded_cache_gib": ANY,
    # The machine and the launch of its processes.
    "training.precision": _one_of("fp32", "bf16", "fp16"),
    "engine.name": _one_of("tensorflow", "torch"),
    "engine.device": ANY,
    "engine.compile": ANY,
    "engine.tf32": ANY,
    "engine.memory_limit_gib": ANY,
    "engine.on_out_of_memory": ANY,
    "replica.nodes": ANY,
    "replica.ranks_per_node": ANY,
    "replica.collective": ANY,
    "replica.rank_timeout_seconds": ANY,
    "search.workers": ANY,
    **{each.name: ANY for each in SCHEDULERS},
    # Storage of checkpoints for re-execution of trials: the default or more, never less.
    "retention.max_gib": Limit("at least 8", lambda value: value >= 8.0),
    # Intervals of writing: the default or shorter, never longer.
    "training.checkpoint_interval_seconds": _at_most(120.0),
    "journal.progress_interval_seconds": _at_most(5.0),
    "journal.heartbeat_interval_seconds": _at_most(10.0),
    "journal.digest_interval_seconds": _at_most(30.0),
    # External witnesses, timestamps and telemetry.
    "witness.urls": ANY,
    "witness.interval_seconds": _at_most(30.0),
    "timestamps.urls": ANY,
    "timestamps.interval_seconds": _at_most(300.0),
    "telemetry.interval_seconds": Limit("above 0, at most 30", lambda value: 0.0 < value <= 30.0),
}
"""Settings that are free in both divisions, by key or by section."""

_SIZES: Final = {"choices": None, "low": 256, "high": 448, "step": 64}
_KERNELS: Final = {"choices": None, "low": 3, "high": 7, "step": 2}

CLOSED: Final[Settings] = {
    "dataset.storage_format": "jpeg",
    "training.batch_size": 448,
    "training.optimizer": "sgd",
    "training.momentum": 0.9,
    "training.beta1": 0.9,
    "training.beta2": 0.999,
    "training.epsilon": 1e-8,
    "training.averaging_start": 0,
    "training.max_gradient_norm": None,
    "training.learning_rate": 0.1,
    "training.schedule.name": "linear",
    "training.schedule.interval": "step",
    "training.schedule.base_batch_size": None,
    "training.schedule.warmup_epochs": 0.0,
    "training.schedule.warmup_steps": 0,
    "training.schedule.warmup_start_factor": 0.0,
    "training.schedule.power": 1.0,
    "training.schedule.end_factor": 0.0,
    "training.schedule.decay_steps": None,
    "training.schedule.milestones": [],
    "training.schedule.milestone_unit": "epoch",
    "training.schedule.factors": [],
    "training.schedule.factor": 0.1,
    "training.schedule.patience": 10,
    "training.schedule.threshold": 1e-4,
    "training.schedule.threshold_mode": "relative",
    "training.weight_decay": 0.0,
    "training.weight_decay_of": "kernels",
    "training.weight_decay_in": "update",
    "training.label_smoothing": 0.0,
    "training.max_epochs": 60,
    "training.patience": 10,
    "rounds.warmup_epochs": [15, 30, 45],
    "rounds.predict_at_epoch": 90,
    "hpo.trials_per_round": 3,
    "hpo.startup_trials": 4,
    "hpo.space.batch_size": _SIZES,
    "hpo.space.kernel_size": _KERNELS,
    "hpo.space.learning_rate": None,
    "hpo.space.momentum": None,
    "hpo.space.weight_decay": None,
    "search.method": "guided",
    "search.queue_depth": 2,
    "search.kappa": 1.0,
    "search.acquisition_evaluations": 16,
    "search.max_morphisms": 4,
    "search.random_parent_probability": 0.3,
    "search.max_parameters": 500_000_000,
    "search.max_operations_ratio": 8.0,
    "search.max_depth": 400,
    "search.max_growth": 2.0,
    "search.keep_checkpoints": 8,
}
"""Settings fixed by the closed division, from Table 4 of Ren et al. 2021 and the defaults of the
search. They are free in the open division, which declares differences next to the score."""
OPEN: Final[Mapping[str, Limit]] = {"search.method": _one_of("guided", "greedy")}
"""Limits of declared settings in the open division."""


class DeclaredSetting(Value):
    """A setting that deviates from the closed division."""

    key: str
    """Dotted key, as for ``--set``."""
    value: Any
    closed: Any
    """Value fixed by the closed division."""

    def __str__(self) -> str:
        return f"{self.key} {said(self.value)} (closed: {said(self.closed)})"


def said(value: object) -> str:
    """Return a setting's value in one line."""
    if isinstance(value, dict):
        return ", ".join(f"{k} {said(v)}" for k, v in value.items() if v is not None)
    return "none" if value is None else str(value)


def flat(config: RunConfig) -> dict[str, Any]:
    """Return all settings by their dotted keys; a dimension of the search space is one setting."""
    return dict(_flat(config, ""))


def _flat(section: BaseModel, above: str) -> Iterator[tuple[str, Any]]:
    plain = section.model_dump(mode="json")
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, BaseModel) and not isinstance(value, Integers | Reals):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", plain[name]


@cache
def _fixed() -> Settings:
    """Return the settings that both divisions fix: those in no table, with their defaults."""
    defaults = flat(RunConfig.model_construct())
    return {
        key: value for key, value in defaults.items() if key not in CLOSED and _free(key) is None
    }


def _free(key: str) -> Limit | None:
    """Return the limit of a free setting, or None if the setting is not free."""
    section = key.partition(".")[0]
    return FREE.get(key, FREE.get(section))


def declared(config: RunConfig) -> tuple[DeclaredSetting, ...]:
    """Return the settings that differ from the closed division's; none if all are equal."""
    settings = flat(config)
    return tuple(
        DeclaredSetting(key=key, value=settings[key], closed=closed)
        for key, closed in CLOSED.items()
        if settings[key] != closed
    )


def fixed_settings(config: RunConfig) -> Findings:
    """All settings that are neither declared nor free have their fixed values."""
    settings = flat(config)
    limits = {
        **{key: _exactly(value) for key, value in _fixed().items()},
        **{key: limit for key in settings if (limit := _free(key))},
        **OPEN,
    }
    wrong = [
        f"{key} is {said(settings[key])}; {limit.words} is required"
        for key, limit in limits.items()
        if not limit.admits(settings[key])
    ]
    yield Found(_differing(len(wrong)))
    yield from wrong


def closed_settings(config: RunConfig) -> Findings:
    """The declared settings have the closed division's values."""
    different = declared(config)
    yield Found(_differing(len(different)))
    for each in different:
        yield f"{each.key} is {said(each.value)}; {said(each.closed)} is required"


def _differing(count: int) -> str:
    return "1 setting differs" if count == 1 else f"{count or 'no'} settings differ"
