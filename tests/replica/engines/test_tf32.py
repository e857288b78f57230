"""What fp32 is on a GPU: the same by both engines, by one setting, and recorded."""

from __future__ import annotations

import pytest
import torch

from aiperf_hpc.config import EngineConfig
from aiperf_hpc.replica.engines import load_engine
from aiperf_hpc.replica.engines.torch import engine as torch_engine
from aiperf_hpc.replica.tensorflow_import import tf
from aiperf_hpc.system.software import arithmetic


def settings(name: str, tf32: bool | None) -> EngineConfig:
    """Return the settings of an engine; None for the default."""
    given = {} if tf32 is None else {"tf32": tf32}
    return EngineConfig.model_validate({"name": name, **given})


CASES = pytest.mark.parametrize(
    ("tf32", "wanted"), [(None, "fp32"), (False, "fp32"), (True, "tf32")], ids=str
)


@CASES
def test_torch(monkeypatch: pytest.MonkeyPatch, tf32: bool | None, wanted: str) -> None:
    """cuDNN's default is TF32, cuBLAS's is not."""
    monkeypatch.setattr(torch_engine, "choose_device", lambda *_: torch.device("cuda", 0))
    monkeypatch.setattr(torch.version, "cuda", "13.0")  # Where cuDNN is reported.
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32
    products.allow_tf32, convolutions.allow_tf32 = tf32 is not True, tf32 is not True
    try:
        torch_engine.placement_of(torch.get_num_threads(), 0, settings("torch", tf32), 1)
        found = arithmetic({"torch": torch})
    finally:
        products.allow_tf32, convolutions.allow_tf32 = before
    assert found == {"PyTorch": wanted, "cuDNN": wanted}


@CASES
def test_tensorflow(monkeypatch: pytest.MonkeyPatch, tf32: bool | None, wanted: str) -> None:
    """TensorFlow's default is TF32."""
    for kind in ("intra", "inter"):  # Fixed since an earlier test of this process.
        name = f"set_{kind}_op_parallelism_threads"
        monkeypatch.setattr(tf.config.threading, name, lambda _: None)
    settable = tf.config.experimental
    before = settable.tensor_float_32_execution_enabled()
    settable.enable_tensor_float_32_execution(tf32 is not True)
    try:
        load_engine("tensorflow", 1, settings=settings("tensorflow", tf32))
        found = arithmetic({"tensorflow": tf})
    finally:
        settable.enable_tensor_float_32_execution(before)
    assert found == {"TensorFlow": wanted}
