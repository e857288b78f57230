"""Entries: what lies together in a submission, and what logs elsewhere state of themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.result_logs import heading, training, write_log

from aiperf_hpc.analysis.options import Options
from aiperf_hpc.analysis.readers.mllog import SubmissionInfo
from aiperf_hpc.analysis.readers.sources import read_sources
from aiperf_hpc.analysis.readers.submission import accelerators_in_name, round_of
from aiperf_hpc.analysis.training_log import Entry

SYSTEM = {
    "submitter": "Lab", "division": "closed", "system_name": "box", "number_of_nodes": "16",
    "accelerators_per_node": "8", "accelerator_model_name": " A100 ", "framework": "PyTorch",
}  # fmt: skip


def entry_of(
    root: Path, place: str, runs: int = 5, benchmark: str = "deepcam", silent: bool = False
) -> Path:
    """Write an entry of a submission: ``ORG/results/SYSTEM/[SCENARIO/]BENCHMARK``.

    Silent logs do not say how many accelerators there were.
    """
    folder = root / place
    sizes: dict[str, object] = {"number_of_nodes": None, "accelerators_per_node": None}
    for number in range(1, runs + 1):
        lines = heading(benchmark, seed=number, **(sizes if silent else {}))
        write_log(folder / f"result_{number}.txt", lines, training())
    return folder


def described(root: Path, organization: str, system: str, **other: object) -> None:
    path = root / organization / "systems" / f"{system}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(SYSTEM | other))


def only(root: Path) -> Entry:
    (entry,) = read_sources([root]).entries
    return entry


def test_a_whole_round(tmp_path: Path) -> None:
    """Organisations, systems, scenarios and benchmarks; code and descriptions are no logs."""
    root = tmp_path / "hpc_results_v2.0"
    entry_of(root, "Lab/results/box/strong/deepcam")
    entry_of(root, "Lab/results/box/strong/cosmoflow", 11, "cosmoflow")
    entry_of(root, "Lab/results/box/weak/deepcam", 6)
    entry_of(root, "Other+Lab/results/big/deepcam")
    described(root, "Lab", "box")
    write_log(root / "Lab/benchmarks/deepcam/log_parser.txt", heading())
    write_log(root / "Lab/README.md", [":::MLLOG lines look like this"])
    found = read_sources([root])
    assert not found.unreadable
    assert [(entry.name, entry.scenario, len(entry.logs)) for entry in found.entries] == [
        ("Lab box cosmoflow", "strong", 11),
        ("Lab box deepcam", "strong", 5),
        ("Lab box deepcam weak", "weak", 6),
        ("Other+Lab big deepcam", "strong", 5),
    ]
    assert {entry.round for entry in found.entries} == {"hpc-2.0"}
    box = found.entries[1].system
    assert (box.nodes, box.accelerators, box.accelerator) == (16, 128, "A100")
    assert found.entries[3].system.accelerators == 8


def test_logs_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    folder = entry_of(tmp_path, "Lab/results/box/strong/deepcam", 11)
    entry = only(folder)
    names = [Path(log.source).name for log in entry.logs]
    assert names == [f"result_{number}.txt" for number in range(1, 12)]


@pytest.mark.parametrize("at", ["Lab", "Lab/results/box", "Lab/results/box/strong/deepcam"])
def test_part_of_a_submission_gives_the_same_entry(at: str, tmp_path: Path) -> None:
    entry_of(tmp_path, "Lab/results/box/strong/deepcam")
    described(tmp_path, "Lab", "box")
    whole = only(tmp_path)
    assert whole.system.framework == "PyTorch"
    assert only(tmp_path / at) == whole


def test_one_file_and_the_same_file_again(tmp_path: Path) -> None:
    folder = entry_of(tmp_path, "Lab/results/box/strong/deepcam")
    path = folder / "result_3.txt"
    for sources in ([path], [path, path], [path, folder / "." / "result_3.txt"]):
        (entry,) = read_sources(sources).entries
        assert [log.source for log in entry.logs] == [str(path)]


def test_logs_outside_a_submission_are_grouped_by_their_content(tmp_path: Path) -> None:
    for name, head in (
        ("cosmoflow", heading()),
        ("deepcam", heading("deepcam")),
        ("open", heading("deepcam", submission_division="open")),
        ("other", heading("deepcam", submission_platform="other")),
    ):
        for number in (1, 2):
            write_log(tmp_path / f"{name}-{number}.log", head, training())
    entries = read_sources([tmp_path]).entries
    assert sorted((entry.name, len(entry.logs)) for entry in entries) == [
        ("Lab box cosmoflow", 2),
        ("Lab box deepcam (closed)", 2),
        ("Lab box deepcam (open)", 2),
        ("Lab other deepcam", 2),
    ]


def test_equal_names_get_distinguishing_suffixes(tmp_path: Path) -> None:
    for round_ in ("hpc_results_v1.0", "hpc_results_v2.0", "a/hpc_results_v2.0"):
        entry_of(tmp_path / round_, "Lab/results/box/deepcam")
    names = [entry.name for entry in read_sources([tmp_path]).entries]
    assert len(set(names)) == 3
    assert "Lab box deepcam (hpc-1.0)" in names


def test_a_log_that_cannot_be_read_is_named_and_the_others_are_analysed(tmp_path: Path) -> None:
    folder = entry_of(tmp_path, "Lab/results/box/strong/deepcam")
    (folder / "result_2.txt").write_text("")
    (folder / "result_4.txt").write_text("Segmentation fault\n")
    found = read_sources([tmp_path])
    assert [(Path(one.path).name, one.reason.split(" (")[0]) for one in found.unreadable] == [
        ("result_2.txt", "empty file"),
        ("result_4.txt", "no mllog lines"),
    ]
    (entry,) = found.entries
    assert (len(entry.logs), entry.lost) == (3, 2)
    assert any("2 logs could not be read and count as failed" in one for one in entry.problems)


def test_pruned_instances_are_counted_and_not_analysed(tmp_path: Path) -> None:
    folder = entry_of(tmp_path, "Lab/results/box/weak/cosmoflow", 10, "cosmoflow")
    for number in (11, 12):
        write_log(folder / "pruned_results" / f"result_{number}.txt", heading(), training())
    entry = only(tmp_path)
    assert (len(entry.logs), entry.pruned) == (10, 2)


def test_a_folder_with_another_benchmarks_name_is_a_problem(tmp_path: Path) -> None:
    entry_of(tmp_path, "Lab/results/box/strong/deepcam", benchmark="cosmoflow")
    entry = only(tmp_path)
    assert entry.benchmark == "cosmoflow"
    assert "its folder is called deepcam, its logs state cosmoflow" in entry.problems


@pytest.mark.parametrize(
    ("system", "per_node", "said", "accelerators", "problem"),
    [
        ("box_n4", 4, 3, 8, ""),
        ("box_n4", None, None, 4, "4 accelerators by its name, box_n4"),
        ("box_n4", None, 3, 3, ""),
        ("box", None, None, None, "give --accelerators N"),
    ],
    ids=["the system's", "by its name", "what the user says", "nobody says"],
)
def test_accelerators_of_silent_logs(
    system: str, per_node: int | None, said: int | None, accelerators: int | None, problem: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    entry_of(tmp_path, f"Lab/results/{system}/strong/deepcam", silent=True)
    if per_node:
        described(tmp_path, "Lab", system, accelerators_per_node=per_node, number_of_nodes=2)
    (entry,) = read_sources([tmp_path], Options(accelerators=said)).entries
    assert {log.accelerators for log in entry.logs} == {accelerators}
    assert [problem in each for each in entry.problems] == [True] * bool(problem)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("abci_512xV100_tensorflow_closed", 512), ("fugaku_8192xA64FX_tensorflow_closed", 8192),
        ("corigpu_n64_tf1.15.0", 64), ("16xR750", None), ("dgx1", None), ("box_n2.5", None),
        ("9" * 4000 + "xV100", None),
    ],
)  # fmt: skip
def test_counts_in_names(name: str, number: int | None) -> None:
    assert accelerators_in_name(name) == number


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "scaling.json: not JSON"), ("[1]", "scaling.json: not a JSON object"),
        ("{}", "scaling.json: scaling_factor is not a number"),
        ('{"scaling_factor": 0.5}', "scaling.json: scaling_factor 0.5 is below 1"),
        ('{"scaling_factor": NaN}', "scaling.json: scaling_factor is not a number"),
        ('{"scaling_factor": "2"}', "scaling.json: scaling_factor is not a number"),
        ('{"scaling_factor": 1' + "0" * 400 + "}", "scaling.json: scaling_factor is not a number"),
    ],
)  # fmt: skip
def test_an_invalid_scaling_json_is_a_problem(text: str, problem: str, tmp_path: Path) -> None:
    folder = entry_of(tmp_path, "Lab/results/box/strong/deepcam")
    (folder / "scaling.json").write_text(text)
    entry = only(tmp_path)
    assert entry.convergence_scale is None
    assert any(one.startswith(problem) for one in entry.problems)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{}", ""), ('{"number_of_nodes": "a few"}', ""), ('{"number_of_nodes": [1]}', ""),
        ('{"number_of_nodes": 1e9}', ""), ("{", "box.json: not JSON: "),
    ],
)  # fmt: skip
def test_a_poor_description_is_no_error(text: str, problem: str, tmp_path: Path) -> None:
    entry_of(tmp_path, "Lab/results/box/strong/deepcam")
    path = tmp_path / "Lab/systems/box.json"
    path.parent.mkdir()
    path.write_text(text)
    entry = only(tmp_path)
    assert (entry.system.nodes, entry.system.accelerators) == (2, 8)
    assert [problem in each for each in entry.problems] == [True] * bool(problem)


def test_division_by_the_description(tmp_path: Path) -> None:
    entry_of(tmp_path, "Lab/results/box/strong/deepcam")
    described(tmp_path, "Lab", "box", division="open")
    entry = only(tmp_path)
    assert entry.division == "open"
    assert "open division by its system description; its logs state closed" in entry.problems


@pytest.mark.parametrize(
    ("path", "benchmark", "dialect", "round_"),
    [
        ("hpc_results_v1.0/x", "openfold", "0.7", "hpc-1.0"),
        ("training_results_v0.6/x", "resnet", "0.6", "training-0.6"),
        ("somewhere", "resnet", "0.6", "training-0.6"),
        ("somewhere", "openfold", "0.7", "hpc-3.0"),
        ("somewhere", "resnet", "0.7", None),
        ("somewhere", "deepcam", "0.7", None),
    ],
)
def test_the_round(path: str, benchmark: str, dialect: str, round_: str | None) -> None:
    stated = SubmissionInfo(benchmark, None, None, None, dialect)
    assert round_of(Path("/") / path, benchmark, stated, ()) == round_
