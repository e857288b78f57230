"""`aiperf profile`: real steps of both engines, and one-line errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NoReturn

import pytest
from tests.support.command import aiperf
from tests.support.present import present
from tests.support.refusals import refused_line
from tests.support.run_factory import Plan, write_run

from aiperf_hpc import extras
from aiperf_hpc.errors import UsageError
from aiperf_hpc.primary import profile
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.replica_requests import (
    CategoryTime,
    KernelCategory,
    KernelTime,
    Profile,
    ProfileRequest,
    by_category,
)

TINY = ["--set", "model.base_width=2", "--set", "model.blocks=[1,1,1,1]"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "run", Plan(trials=3, hpo_trials=1)).root


@pytest.mark.parametrize("engine", ["tensorflow", "torch"])
def test_steps_of_a_run_are_profiled(engine: str, run: Path, tmp_path: Path) -> None:
    done = aiperf("profile", run, "--engine", engine, "--steps", 2, "--batch-size", 3,
                  "--out", tmp_path, "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = Profile.model_validate_json(done.stdout)
    assert found == Profile.model_validate_json((tmp_path / "profile.json").read_text("utf-8"))
    view = RunView.read(RunPaths(run))
    best = present(view.history.best_until(view.until))
    assert (found.trial, found.engine) == (best.trial, engine)
    assert found.graph == view.history.trials[best.trial].started.graph
    assert (found.steps, found.batch_size, found.data) == (2, 3, "synthetic")
    fractions = {each.category: each.fraction for each in found.categories}
    assert sum(fractions.values()) == pytest.approx(1.0, abs=1e-6)
    assert {KernelCategory.CONVOLUTION, KernelCategory.GEMM, KernelCategory.NORMALIZATION,
            KernelCategory.RELU, KernelCategory.ELEMENT_WISE} <= fractions.keys()  # fmt: skip
    assert found.steps_per_second > 0.0
    assert found.profiled_steps_per_second > 0.0
    assert Path(found.trace).stat().st_size > 0
    assert "convolution" in (tmp_path / "profile.svg").read_text("utf-8")


def test_the_initial_network_of_a_configuration_on_its_own_samples(tmp_path: Path) -> None:
    done = aiperf("profile", "--config", "quickstart", *TINY, "--engine", "torch", "--steps", 1,
                  "--batch-size", 2, "--data", "real", "--out", tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "1 steps of 2 samples (real data in the shapes of 'digits'), fp32, sgd" in done.stdout
    assert "total of the profiler" in done.stdout
    assert "uncategorized" in done.stdout


def time(name: str, category: KernelCategory, seconds: float) -> KernelTime:
    return KernelTime(name=name, category=category, calls=4, seconds=seconds)


KERNELS = (
    time("conv", KernelCategory.CONVOLUTION, 3.0),
    time("odd", KernelCategory.UNCATEGORIZED, 2.0),
    time("conv_backward", KernelCategory.CONVOLUTION, 1.0),
)


def test_categories_are_sums_and_shares_of_the_profilers_total() -> None:
    """3 + 1 and 2 of 8 seconds: 2 are nobody's, and fractions say so."""
    assert by_category(KERNELS, 8.0) == (
        CategoryTime(category=KernelCategory.CONVOLUTION, seconds=4.0, fraction=0.5),
        CategoryTime(category=KernelCategory.UNCATEGORIZED, seconds=2.0, fraction=0.25),
    )


def test_the_table_has_the_uncategorized_share() -> None:
    found = Profile(
        source="run", graph="a" * 64, trial=None, engine="torch", versions={"torch": "2"},
        host="h", device="cpu", cores=2, dataset="digits", data="synthetic", batch_size=8,
        precision="fp32", optimizer="sgd", steps=4, steps_per_second=2.0,
        profiled_steps_per_second=1.5, timed="operators", total_seconds=6.0,
        categories=by_category(KERNELS, 6.0), kernels=KERNELS, trace="trace",
    )  # fmt: skip
    lines = [" ".join(line.split()) for line in profile.table(found)]
    assert "2 steps/s, with the profiler 1.5 (-25.0%)" in lines
    assert "convolution 1000.000 66.7%" in lines
    assert "uncategorized 500.000 33.3%" in lines
    assert "odd uncategorized 4 500.000 33.3%" in lines
    known = found.model_copy(update={"categories": by_category(KERNELS[:1], 3.0)})
    lines = [" ".join(line.split()) for line in profile.table(known)]
    assert "uncategorized 0.000 0.0%" in lines


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name either a run directory or --config FILE|PRESET"),
        (["RUN", "--config", "quickstart"], "name either a run directory or --config"),
        (["RUN", "--set", "seed=1"], "--set changes a configuration"),
        (["RUN", "--steps", 0], "--steps 0: from 1 to 10000"),
        (["RUN", "--batch-size", 0], "--batch-size 0: at least 1"),
        (["RUN", "--graph", "zz"], "--graph zz: {run} has no such graph"),
        (["--config", "quickstart", "--graph", "ab"], "--graph ab: a configuration has its"),
        (["--config", "quickstrat"], "no preset and no file 'quickstrat'; did you mean"),
        (["--config", "simulated"], "engine 'simulated' computes nothing"),
        (["--config", "imagenet"], "dataset 'imagenet': there is no folder"),
        (["no-run-here"], "there is no run no-run-here"),
        (["RUN", "--time-limit", 0], "--time-limit 0"),
        (["RUN", "--engine", "jax"], "--engine jax: should be one of 'tensorflow', 'torch'"),
    ],
)
def test_what_cannot_be_profiled_is_one_line(
    arguments: list[object], words: str, run: Path, tmp_path: Path
) -> None:
    given = [run if argument == "RUN" else argument for argument in arguments]
    out = tmp_path / "out"
    assert words.format(run=run) in refused_line("profile", *given, "--out", out)
    assert not out.exists()


def test_a_run_without_evaluations(tmp_path: Path) -> None:
    empty = write_run(tmp_path / "run", Plan(trials=1, hpo_trials=0, failed=0, evaluated=False))
    assert "nothing was evaluated, so it has no best" in refused_line("profile", empty.root)


def test_an_engine_that_is_not_installed_is_named_with_its_remedy(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(extras.ENGINES, "torch", extras.Package("no_such_package", "pip it"))
    line = refused_line("profile", run, "--engine", "torch")
    remedy = "pip it; or use --set engine.name=tensorflow"
    assert line == f"engine 'torch' needs the package 'no_such_package': {remedy}"


def test_a_too_large_batch(run: Path, tmp_path: Path) -> None:
    batch = ["--batch-size", 10**9]
    line = refused_line("profile", run, "--engine", "torch", *batch, "--out", tmp_path)
    assert line.startswith("a batch of 1000000000 samples needs an estimated ")
    assert line.endswith("MiB are there; lower --batch-size")


def test_a_beginning_of_a_hash_and_the_initial_graph_are_found(run: Path) -> None:
    view = RunView.read(RunPaths(run))
    trials = view.ordered_trials()
    wanted = trials[-1].started.graph
    request = profile.of_run(run, wanted[:10], profile.Choice())
    assert request.graph is not None
    assert request.trial in {t.id for t in trials if t.started.graph == wanted}
    initial = profile.of_run(run, "initial", profile.Choice())
    assert initial.trial in {t.id for t in trials if t.started.parent is None}
    assert json.loads(initial.graph or "") != json.loads(request.graph)


def test_another_engine_is_asked_whether_it_can(run: Path) -> None:
    config = RunView(RunPaths(run)).manifest.config
    torch = profile.with_engine(config, "torch")
    assert (torch.engine.name, config.engine.name) == ("torch", "tensorflow")
    half = torch.model_copy(
        update={"training": torch.training.model_copy(update={"precision": "fp16"})}
    )
    with pytest.raises(UsageError, match="--engine tensorflow: .*loss scaling"):
        profile.with_engine(half, "tensorflow")


def test_a_profile_that_takes_too_long_is_one_line(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_long(
        command: list[str], seconds: float, given: str, *, late: str, what: str
    ) -> NoReturn:
        assert ProfileRequest.model_validate_json(given).steps == 7
        raise UsageError(late.format(seconds))

    monkeypatch.setattr(profile, "run_in_session", too_long)
    line = refused_line("profile", run, "--steps", 7, "--time-limit", 90, "--out", tmp_path)
    assert line == (
        "7 steps were not profiled within 90 s; give fewer --steps, "
        "a smaller --batch-size or a longer --time-limit"
    )
