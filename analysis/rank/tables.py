"""A ranking as tables: a terminal and a page show the same ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from aiperf_hpc.analysis.rank.entry import RankEntry
from aiperf_hpc.analysis.rank.ranking import Ranking
from aiperf_hpc.formatting import percent, si
from aiperf_hpc.ops_counter.divisions import Division
from aiperf_hpc.results.table import NONE, Table, optional
from aiperf_hpc.system.summary import times

COLUMNS = ("rank", "system", "score", "regulated", "error", "replicas", "hosts", "accelerators",
           "cores", "power", "OPS per watt", "hours", "signed by", "run")  # fmt: skip
APART = COLUMNS[1:]
RANKED = "Verified, and valid by the benchmark's rules"
WITHOUT_A_NAME = "no name given"


def tables_of(ranking: Ranking) -> list[Table]:
    """Return the ranked runs, those that are not valid, and those that are left out."""
    ranked = [_ranked(division, entries) for division, entries in ranking.divisions.items()]
    none = Table(COLUMNS, (), title=RANKED, words=(1, 7, 12), notes=("No run.",))
    return [*(ranked or [none]), *_invalid(ranking.invalid), *_left_out(ranking)]


def _ranked(division: Division, entries: Sequence[RankEntry]) -> Table:
    return Table(
        COLUMNS,
        tuple((f"{place}", *_cells(each)) for place, each in enumerate(entries, 1)),
        title=f"{RANKED}, {division} division",
        words=(1, 7, 12),
        notes=(
            *(f"{e.name} declares {'; '.join(e.declared)}." for e in entries if e.declared),
            *(f"{e.name}: {e.witness}." for e in entries),
        ),
    )


def _invalid(entries: Iterable[RankEntry]) -> Iterable[Table]:
    rows = tuple((*_cells(each), _rules(each)) for each in entries)
    if rows:
        title = "Verified, and not valid by the benchmark's rules: without a rank"
        notes = ("How a run did not keep a rule: its result.txt, or --json.",)
        yield Table((*APART, "rules not kept"), rows, title=title, words=(6, 11, 13), notes=notes)


def _rules(entry: RankEntry) -> str:
    """Return the rules that a run did not keep, by their names."""
    return ", ".join(dict.fromkeys(reason.partition(":")[0] for reason in entry.broken))


def _left_out(ranking: Ranking) -> Iterable[Table]:
    rows = tuple((each.name, "; ".join(each.reasons)) for each in ranking.left_out)
    if rows:
        yield Table(("run", "reason"), rows, title="Not verified: without a score", words=(1,))


def _cells(entry: RankEntry) -> tuple[str, ...]:
    resources = entry.resources
    models = ", ".join(times(count, model) for model, count in resources.accelerators.items())
    return (
        system_of(entry),
        si(entry.ops, "OPS"),
        optional(lambda value: si(value, "OPS"), entry.regulated),
        percent(entry.error),
        f"{resources.replicas:,}",
        f"{resources.hosts:,}",
        models or "none",
        NONE if resources.cores is None else f"{resources.cores:,}",
        power_of(entry),
        optional(lambda value: si(value, "OPS"), entry.ops_per_watt),
        f"{entry.hours:.3g}",
        entry.signed_by,
        entry.name,
    )


def power_of(entry: RankEntry) -> str:
    """Return the mean power, and whether it is an estimate or without some of the machine."""
    if entry.watts is None:
        return NONE
    return si(entry.watts, "W") + ("" if entry.energy_label == "measured" else ", estimated")


def system_of(entry: RankEntry) -> str:
    """Return a system's name and submitter; its processors' where nobody named it."""
    named = ", ".join(filter(None, [entry.system, entry.submitter]))
    return named or ", ".join(entry.resources.processors) or WITHOUT_A_NAME
