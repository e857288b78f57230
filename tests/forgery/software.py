"""Forgeries of software: versions, commit, engine and settings."""

from __future__ import annotations

from tests.forgery.forger import ForgedRun, event_of, forgery, of


@forgery("software", "config")
def another_engine_in_the_configuration(run: ForgedRun) -> None:
    run.set(lambda values: values["config"]["engine"].update(name="torch"))


@forgery("software", "config")
def another_engine_on_a_replica(run: ForgedRun) -> None:
    event_of(run.trainer(), "replica_started")["engine"] = "torch"


@forgery("software")
def another_engine_everywhere(run: ForgedRun) -> None:
    """A simulation would be no simulation: what it computed, only who executes it again knows."""
    another_engine_in_the_configuration(run)
    for name in ("r0", "r1", "r2"):
        event_of(run.trainer(name), "replica_started")["engine"] = "torch"


@forgery("software", "config")
def another_launcher(run: ForgedRun) -> None:
    run.set(lambda values: values.update(launcher="local"))


@forgery("software", "config")
def another_name_of_the_run(run: ForgedRun) -> None:
    run.set(lambda values: values.update(run_id="the best run"))


@forgery("software")
def another_commit(run: ForgedRun) -> None:
    run.set(lambda values: values.update(commit="f" * 40))


@forgery("software")
def another_version_of_the_benchmark(run: ForgedRun) -> None:
    run.set(lambda values: values["versions"].update({"aiperf-hpc": "9.9"}))


@forgery("software")
def another_version_on_all_replicas(run: ForgedRun) -> None:
    for name in ("r0", "r1", "r2"):
        versions = event_of(run.trainer(name), "replica_started")["machine"]["versions"]
        versions["numpy"] = "9.9"


@forgery("software", "config")
def a_setting_that_was_another(run: ForgedRun) -> None:
    """``run.yaml`` was changed, and not the digest that the primary stated."""
    run.set(lambda values: values["config"]["hpo"].update(startup_trials=1))
    run.keep_digest = True


@forgery("software")
def a_setting_that_was_another_and_its_digest(run: ForgedRun) -> None:
    run.set(lambda values: values["config"]["hpo"].update(startup_trials=1))


@forgery("software", "rounds")
def another_precision_than_configured(run: ForgedRun) -> None:
    for line in of(run.trainer(), "trial_started"):
        line["event"]["hyperparameters"]["precision"] = "fp8"


@forgery("software", "names")
def another_seed_of_the_run(run: ForgedRun) -> None:
    run.set(lambda values: values["config"].update(seed=1))


@forgery("software", "counts")
def another_network_in_the_configuration(run: ForgedRun) -> None:
    run.set(lambda values: values["config"]["model"].update(base_width=2))
