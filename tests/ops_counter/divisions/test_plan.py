"""The rules that are asked before a start, each with what it lets through and what not."""

from __future__ import annotations

import pytest
from tests.support.official_run import RELEASED, VERSION

from aiperf_hpc.config import load_config
from aiperf_hpc.datasets import ARCHIVES
from aiperf_hpc.integrity.release import FILES
from aiperf_hpc.ops_counter.divisions import Division
from aiperf_hpc.ops_counter.divisions.arithmetic import environment_rule, precision_rule
from aiperf_hpc.ops_counter.divisions.dataset import content_rule, dataset_rule
from aiperf_hpc.ops_counter.divisions.plan import asked_hours, division_of
from aiperf_hpc.ops_counter.divisions.release import release_rule, versions_rule
from aiperf_hpc.ops_counter.divisions.settings import closed_settings, declared
from aiperf_hpc.trial import DatasetInfo, TensorSpec

IMAGENET = DatasetInfo.of_labelled_images(
    name="imagenet",
    sha256="ab" * 32,
    classes=1000,
    shape=(224, 224, 3),
    train_samples=1_281_167,
    validation_samples=50_000,
)


@pytest.mark.parametrize(
    ("version", "files", "changes", "others", "reasons"),
    [
        (VERSION, RELEASED, [], [], []),
        (VERSION, "ab" * 32, ["a.py changed", "b.py missing", "c.py added", "d.py added"], [],
         ["not release 1.0.0: a.py changed, b.py missing, c.py added, and 1 more; "
          "install the release unchanged"]),
        (VERSION, "ab" * 32, [], [],
         ["not release 1.0.0: its files differ; install the release unchanged"]),
        ("../1.0.0", RELEASED, [], [],
         ["version ../1.0.0 is not released; run a released version (1.0.0)"]),
        (VERSION, RELEASED, [], ["r1"],
         ["other files of the package on r1; install the same release on all nodes"]),
        (VERSION, None, [], [],
         ["the run does not record the digest of the package's files; run a released version"]),
    ],
)  # fmt: skip
def test_a_release_is_unchanged(
    version: str, files: str | None, changes: list[str], others: list[str], reasons: list[str]
) -> None:
    versions = {"aiperf-hpc": version} | ({} if files is None else {FILES: files})
    assert list(release_rule(versions, changes, others).reasons) == reasons


def test_versions_are_the_same_on_all_replicas() -> None:
    usual = {"numpy": "2.0", "torch": "2.5"}
    assert versions_rule([("r0", usual), ("r1", usual)]).passed
    other = versions_rule([("r0", usual), ("r1", usual), ("r2", {"numpy": "2.1"})])
    assert other.reasons == ("r2 has numpy 2.1, torch none; most replicas have another",)
    assert not versions_rule([]).passed


@pytest.mark.parametrize(
    ("name", "value", "precision", "kept"),
    [
        ("ONEDNN_DEFAULT_FPMATH_MODE", "STRICT", "fp32", True),
        ("ONEDNN_DEFAULT_FPMATH_MODE", "bf16", "fp32", False),
        ("ONEDNN_DEFAULT_FPMATH_MODE", "BF16", "bf16", True),
        ("DNNL_DEFAULT_FPMATH_MODE", "ANY", "bf16", False),
        ("NVIDIA_TF32_OVERRIDE", "1", "fp32", False),
        ("NVIDIA_TF32_OVERRIDE", "0", "fp32", True),
        ("NVIDIA_TF32_OVERRIDE", "1", "bf16", True),
        ("TF_ENABLE_ONEDNN_OPTS", "1", "fp32", True),
        ("XLA_FLAGS", "--xla_gpu_enable_fp8_gemm=true", "bf16", False),
        ("XLA_FLAGS", "--xla_gpu_autotune_level=4", "fp32", True),
        ("FAKETIME", "-1d x0.5", "bf16", False),
        ("TF_XLA_FLAGS", "--tf_xla_persistent_cache_directory=/c", "bf16", False),
        ("XLA_FLAGS", "--xla_gpu_kernel_cache_file=/c", "bf16", False),
        ("TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE", "1", "bf16", False),
        ("TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE", "0", "bf16", True),
    ],
)
def test_no_variable_lowers_what_is_stated_or_uses_what_was_compiled_before(
    name: str, value: str, precision: str, kept: bool
) -> None:
    check = environment_rule([{}, {name: value}], precision)
    assert check.passed is kept
    assert all(reason.startswith(name) for reason in check.reasons)


def test_what_is_preloaded_is_stated() -> None:
    check = environment_rule([{"LD_PRELOAD": "libtcmalloc.so", "OMP_NUM_THREADS": "8"}], "bf16")
    assert (check.passed, check.value) == (True, "LD_PRELOAD=libtcmalloc.so")


def test_what_nobody_told_is_no_environment() -> None:
    assert not environment_rule([], "bf16", ["r0 did not tell its variables"]).passed


def test_fewer_than_sixteen_bits_are_refused() -> None:
    assert precision_rule(["fp32", "bf16", "fp16"]).passed
    check = precision_rule(["bf16", "fp8"], {"cuBLAS": "tf32"})
    assert (check.value, check.reasons) == (
        "bf16, fp8; cuBLAS tf32",
        ("fp8; at least FP16 is required",),
    )


def test_an_hour_is_to_be_asked_for() -> None:
    assert asked_hours(1.0).passed
    assert asked_hours(0.999).reasons == ("0.999 h; at least 1 h is required",)


def test_the_dataset_is_known_by_its_content() -> None:
    assert dataset_rule([IMAGENET], "jpeg").passed
    assert content_rule([IMAGENET]).reasons == (
        "it was not prepared from the official archives, nor is SHA-256 abababababab known as "
        "theirs; prepare it from the folder that has them",
    )
    archives = dict(ARCHIVES["imagenet"])
    assert content_rule([IMAGENET.model_copy(update={"archives": archives})]).passed
    others = dict.fromkeys(archives, "0" * 32)
    assert content_rule([IMAGENET.model_copy(update={"archives": others})]).reasons == (
        "it was prepared from archives of another MD5 than the published ones",
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"inputs": {"image": TensorSpec(shape=(64, 64, 3))}}, "images of (64, 64, 3); "),
        ({"inputs": {"voxels": TensorSpec(shape=(64, 64))}}, "images of None; "),
        ({"classes": None}, "None classes; ImageNet has 1,000"),
        ({"train_samples": 120}, "120 train samples; ImageNet has 1,281,167"),
        ({"stored": "raw"}, "images stored as raw; dataset.stored is jpeg"),
    ],
)
def test_numbers_of_another_dataset_are_no_imagenet(change: dict[str, object], reason: str) -> None:
    (said,) = dataset_rule([IMAGENET.model_copy(update=change)], "jpeg").reasons
    assert said.startswith(reason)


@pytest.mark.parametrize("stored", ["resized", "raw"])
def test_resized_images_are_declared_in_the_open_division(stored: str) -> None:
    config = load_config("imagenet", [f"dataset.stored={stored}"])
    assert division_of(config) is Division.OPEN
    (reason,) = closed_settings(config).reasons
    assert reason == f"dataset.stored is {stored}; jpeg is required"
    assert [str(each) for each in declared(config)] == [f"dataset.stored {stored} (closed: jpeg)"]
    info = IMAGENET.model_copy(update={"stored": stored})
    assert dataset_rule([info], config.dataset.stored).passed
    assert not dataset_rule([IMAGENET], config.dataset.stored).passed
