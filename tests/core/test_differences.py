from __future__ import annotations

from aiperf_hpc.config import differences, load_config, preset_names, preset_of


def test_a_preset_does_not_differ_from_itself() -> None:
    for name in preset_names():
        assert differences(load_config(name)) == []


def test_what_differs_is_named_as_it_is_set() -> None:
    config = load_config("quickstart", ["training.batch_size=8", "rounds.warmup_epochs=[1, 2]"])
    usual = load_config("quickstart")
    assert differences(config) == [
        ("training.batch_size", 8, usual.training.batch_size),
        ("rounds.warmup_epochs", [1, 2], list(usual.rounds.warmup_epochs)),
    ]


def test_a_configuration_of_no_preset_is_compared_with_the_official_one() -> None:
    own = load_config("imagenet", ["preset=ours", "seed=3"])
    assert preset_of(own) == "imagenet"
    assert [each.key for each in differences(own)] == ["preset", "seed"]
