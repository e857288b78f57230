"""Hyperparameters in records: what they did not always have is left out at its default."""

from __future__ import annotations

from aiperf_hpc.trial import Hyperparameters, ScheduleSettings

FIRST = (
    '{"batch_size":448,"kernel_size":null,"optimizer":"sgd","learning_rate":0.1,"momentum":0.9,'
    '"weight_decay":0.0,"label_smoothing":0.0,"precision":"bf16"}'
)
"""Hyperparameters as the first version wrote them. Simulated worlds depend on this text."""


def test_hyperparameters_of_the_first_records_are_read_and_written_as_they_were() -> None:
    used = Hyperparameters.model_validate_json(FIRST)
    assert used == Hyperparameters(batch_size=448, learning_rate=0.1, precision="bf16")
    assert used.model_dump_json() == FIRST
    assert (used.beta1, used.beta2, used.epsilon) == (0.9, 0.999, 1e-8)


def test_what_is_not_the_default_is_written_and_read() -> None:
    used = Hyperparameters(
        batch_size=8, learning_rate=0.1, optimizer="lamb", beta2=0.98, max_gradient_norm=1.0
    )
    assert used.model_dump().items() >= {"beta2": 0.98, "max_gradient_norm": 1.0}.items()
    assert used.model_copy(update={"schedule": ScheduleSettings(warmup_steps=5)}).model_dump()[
        "schedule"
    ] == {"warmup_steps": 5}
    assert "beta1" not in used.model_dump()
    assert Hyperparameters.model_validate_json(used.model_dump_json()) == used
