"""The table of Valid FLOPS: rows, ranks, declarations and what contradicts them."""

from __future__ import annotations

import pytest

from aiperf_hpc.analysis.analysis import analyze
from aiperf_hpc.analysis.declaration import LAYERS, Declaration
from aiperf_hpc.analysis.metric import NotMeasuredError
from aiperf_hpc.analysis.options import Options, Qualities
from aiperf_hpc.analysis.sections.valid_flops import ValidFlopsTable, tables, valid_flops_table
from aiperf_hpc.analysis.training_log import (
    Entry,
    Evaluation,
    Interval,
    Quality,
    ReadResult,
    System,
    TrainingLog,
)
from aiperf_hpc.errors import UsageError

MAE = Quality(name="eval_error", higher_is_better=False, target=0.124)


def training(
    achieved: float | None, operations: int | None = 1_000_000, **others: object
) -> object:
    evaluation = Evaluation(epoch=1, started=None, ended=90.0, quality=achieved)
    return TrainingLog.model_validate(
        {
            "source": "log",
            "run": Interval(started=0.0, ended=100.0),
            "succeeded": True,
            "evaluations": (evaluation,),
            "quality": MAE,
            "operations": operations,
        }
        | others
    )


def entry(name: str, *logs: object, **others: object) -> Entry:
    return Entry.model_validate(
        {
            "name": name,
            "format": "aiperf",
            "benchmark": "cosmoflow",
            "system": System(name=name),
            "path": name,
            "logs": logs,
        }
        | others
    )


def declaration(level: str = "free", of: str | None = None) -> Declaration:
    layers: dict[str, object] = {name: {"changed": False} for name in LAYERS}
    layers["framework"] = {"changed": True, "what": "JAX 0.4"}
    return Declaration.model_validate({"level": level, "entry": of, "layers": layers})


def test_a_row_is_the_mean_over_trainings() -> None:
    """10,000 FLOPS each; ratios 1 and 1/2 to the power of 2."""
    one = entry("a", training(0.124), training(0.248))
    (row,) = valid_flops_table([one], Options(vflops_exponent=2)).rows
    assert row.flops == pytest.approx(10_000.0)
    assert row.vflops == pytest.approx((10_000.0 + 2_500.0) / 2)
    assert row.deviation == pytest.approx(7_500.0 / 2**0.5)
    assert row.quality == pytest.approx(0.186)
    assert (row.reached, row.trainings, row.seconds_to_quality) == (1, 2, 90.0)


def test_time_to_quality_is_time_to_accuracy_and_no_clock_that_went_backwards() -> None:
    seen = ((50.0, 0.3), (20.0, 0.2), (90.0, 0.1))
    back = tuple(Evaluation(epoch=None, started=None, ended=at, quality=q) for at, q in seen)
    one = entry("a", training(0.1), training(0.1, evaluations=back))
    (row,) = valid_flops_table([one], Options()).rows
    assert (row.reached, row.trainings, row.seconds_to_quality) == (1, 2, 90.0)


def test_a_training_that_lacks_something_is_named_and_left_out() -> None:
    one = entry("a", training(0.124, source="x", quality=None), training(0.124))
    (row,) = valid_flops_table([one], Options()).rows
    assert row.trainings == 1
    assert row.unmeasured == {"x": "the benchmark has no target: name one with --target"}
    (table,) = tables(valid_flops_table([one], Options()))
    assert any(note.startswith("a: without x: the benchmark has no target") for note in table.notes)


def test_models_that_train_at_once_add_up() -> None:
    one = entry("a", training(0.124), training(0.248), scenario="weak")
    (row,) = valid_flops_table([one], Options(vflops_exponent=2)).rows
    assert row.flops == pytest.approx(20_000.0)
    assert row.vflops == pytest.approx(12_500.0)
    assert row.deviation is None


def test_models_that_a_replica_trains_one_after_another_do_not_add_up() -> None:
    """Of 100 s each, in 200 s: two at once, then one beside one that is not there."""
    later = Interval(started=100.0, ended=200.0)
    logs = (training(0.124), training(0.124), training(0.248, run=later))
    (row,) = valid_flops_table(
        [entry("a", *logs, scenario="weak")], Options(vflops_exponent=2)
    ).rows
    assert row.flops == pytest.approx(3_000_000 / 200)
    assert row.vflops == pytest.approx((2 + 0.25) * 1_000_000 / 200)


def test_a_target_that_nobody_reached_has_no_time() -> None:
    (row,) = valid_flops_table([entry("a", training(0.3))], Options()).rows
    assert (row.reached, row.seconds_to_quality) == (0, None)
    (table,) = tables(valid_flops_table([entry("a", training(0.3))], Options()))
    (cells,) = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    assert cells["reached the target"] == "0 of 1"
    assert cells["time to it, mean"] == "–"
    assert "inf" not in str(table)


def test_the_highest_comes_first_and_what_is_missing_is_named() -> None:
    table = valid_flops_table(
        [
            entry("slow", training(0.124)),
            entry("dumb", training(None)),
            entry("fast", training(0.124, 9_000_000)),
        ],
        Options(),
    )
    assert [row.entry for row in table.rows] == ["fast", "slow"]
    assert table.missing == {"dumb": "the last evaluation has no quality that is a number"}


def test_where_no_entry_has_any_the_reasons_are_given() -> None:
    with pytest.raises(
        NotMeasuredError, match="dumb: the benchmark has no target: name one with --target"
    ):
        valid_flops_table([entry("dumb", training(0.1, quality=None))], Options())
    with pytest.raises(NotMeasuredError, match="there is no entry"):
        valid_flops_table([], Options())
    with pytest.raises(NotMeasuredError, match="bare: the entry has no trainings"):
        valid_flops_table([entry("bare")], Options())


def test_a_declaration_of_all_entries_stands_with_each() -> None:
    both = [entry("a", training(0.1)), entry("b", training(0.1))]
    table = valid_flops_table(both, Options(declarations=(declaration(),)))
    assert [one.entry for one in table.declared] == ["a", "b"]
    _, declared = tables(table)
    assert declared.title == "free level, declared of a, b"
    assert declared.rows[4] == ("5 framework", "changed", "JAX 0.4")
    assert declared.rows[8] == ("9 problem domain", "as the benchmark has it", "")


def test_each_entry_has_its_own_declaration() -> None:
    both = [entry("a", training(0.1)), entry("b", training(0.1))]
    own = (declaration(of="b"), declaration("system", of="a"))
    table = valid_flops_table(both, Options(declarations=own))
    assert [(one.entry, one.declaration.level) for one in table.declared] == [
        ("a", "system"),
        ("b", "free"),
    ]


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ((declaration(of="c"),), "is of 'c'; the entries are: a"),
        ((declaration(), declaration(of="a")), "2 declarations are of a"),
    ],
)
def test_declarations_of_none_or_twice_of_one_are_refused(
    declared: tuple[Declaration, ...], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        valid_flops_table([entry("a", training(0.1))], Options(declarations=declared))


def test_a_target_that_the_user_names_contradicts_no_declaration() -> None:
    named = Qualities(benchmark=None, values=(0.2,))
    options = Options(declarations=(declaration(),), targets=(named,))
    public = entry("a", training(0.1)).model_copy(update={"format": "mllog"})
    table = analyze(ReadResult((public,)), options).sections["valid_flops"]
    assert isinstance(table, ValidFlopsTable)
    assert table.rows[0].target == 0.2
    assert table.declared[0].contradicted == ()


def test_the_benchmarks_own_target_weights_what_ended_at_another() -> None:
    """Time to quality is that to this target too; one that the user names goes before both."""
    own = MAE.model_copy(update={"target": 0.3, "weighted_by": 0.124})
    one = entry("a", training(0.248, quality=own), training(0.124, quality=own))
    (row,) = valid_flops_table([one], Options(vflops_exponent=2)).rows
    assert (row.target, row.reached, row.seconds_to_quality) == (0.124, 1, 90.0)
    assert row.vflops == pytest.approx((2_500.0 + 10_000.0) / 2)
    named = Options(targets=(Qualities(benchmark=None, values=(0.248,)),))
    public = one.model_copy(update={"format": "mllog"})
    table = analyze(ReadResult((public,)), named).sections["valid_flops"]
    assert isinstance(table, ValidFlopsTable)
    assert (table.rows[0].target, table.rows[0].reached) == (0.248, 2)


def test_logs_of_another_problem_contradict_every_declaration() -> None:
    easier = MAE.model_copy(update={"target": 0.25})
    one = entry("a", training(0.1, quality=easier, train_samples=1_280), training(0.1))
    table = valid_flops_table([one], Options(declarations=(declaration(),)))
    assert table.declared[0].contradicted == (
        "problem_domain: the target is 0.25; cosmoflow's is 0.124",
        "problem_domain: 1,280 training samples; cosmoflow has 262,144 or 524,288",
    )
    _, declared = tables(table)
    assert declared.notes[0] == (
        "contradicted by logs of a: problem_domain: the target is 0.25; cosmoflow's is 0.124"
    )
