"""Forgeries of the dataset."""

from __future__ import annotations

from tests.forgery.forger import ForgedRun, event_of, forgery

REPLICAS = ("r0", "r1", "r2")


def _everywhere(run: ForgedRun, **values: object) -> None:
    for name in REPLICAS:
        event_of(run.trainer(name), "dataset_loaded")["dataset"].update(values)


@forgery("dataset", "dataset")
def another_dataset_on_one_replica(run: ForgedRun) -> None:
    event_of(run.trainer(), "dataset_loaded")["dataset"]["sha256"] = "0" * 64


@forgery("dataset", "dataset")
def another_name_in_the_configuration(run: ForgedRun) -> None:
    run.set(lambda values: values["config"]["dataset"].update(name="digits"))


@forgery("dataset", "dataset")
def another_name_on_all_replicas(run: ForgedRun) -> None:
    _everywhere(run, name="imagenet")


@forgery("dataset", "samples")
def more_samples_than_there_are(run: ForgedRun) -> None:
    _everywhere(run, train_samples=4096)


@forgery("dataset", "evaluations")
def fewer_validation_samples_than_were_evaluated(run: ForgedRun) -> None:
    _everywhere(run, validation_samples=256)


@forgery("dataset")
def another_digest_on_all_replicas(run: ForgedRun) -> None:
    """Which dataset is official, the divisions' rules say."""
    _everywhere(run, sha256="0" * 64)


@forgery("dataset", "graphs")
def more_classes_than_there_are(run: ForgedRun) -> None:
    _everywhere(run, classes=1000)


@forgery("dataset", "graphs")
def larger_images_than_there_are(run: ForgedRun) -> None:
    for name in REPLICAS:
        dataset = event_of(run.trainer(name), "dataset_loaded")["dataset"]
        dataset["inputs"]["image"]["shape"] = [64, 64, 3]


@forgery("dataset", "dataset")
def a_dataset_that_is_not_the_one_of_the_start(run: ForgedRun) -> None:
    dataset = {**event_of(run.trainer(), "dataset_loaded")["dataset"], "sha256": "1" * 64}
    run.set(lambda values: values.update(dataset=dataset))


@forgery("dataset", "graphs")
def no_replica_that_loaded_a_dataset(run: ForgedRun) -> None:
    for name in REPLICAS:
        lines = run.trainer(name)
        lines[:] = [line for line in lines if line["event"]["type"] != "dataset_loaded"]
