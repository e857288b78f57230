"""The rules that are asked before a start, each with what it lets through and what not."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.support import official_run
from tests.support.official_run import RELEASED, VERSION

from aiperf_hpc.config import load_config
from aiperf_hpc.datasets import ARCHIVES
from aiperf_hpc.integrity.release import FILES
from aiperf_hpc.rules.judgement import division_of
from aiperf_hpc.rules.registry import (
    CLOCK_START,
    CLOSED_SETTINGS,
    CONTENT,
    DATASET,
    ENVIRONMENT,
    HOURS,
    PRECISION,
    RELEASE,
)
from aiperf_hpc.rules.rule import Division, Rule
from aiperf_hpc.rules.validity.dataset import Datasets
from aiperf_hpc.rules.validity.precision import Environment, Precisions
from aiperf_hpc.rules.validity.settings import declared
from aiperf_hpc.rules.validity.software import Code, code_here
from aiperf_hpc.system.software import recorded_variables
from aiperf_hpc.trial import DatasetInfo, TensorSpec

IMAGENET = official_run.IMAGENET.model_copy(update={"archives": {}})


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
    assert list(RELEASE.check(Code(versions, changes, others)).failures) == reasons


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
        ("HIPBLASLT_OVERRIDE_COMPUTE_TYPE_XF32", "1", "fp32", False),
        ("MKL_BLAS_COMPUTE_MODE", "COMPLEX_3M, FLOAT_TO_BF16X2", "fp32", False),
        ("MKL_BLAS_COMPUTE_MODE", "STANDARD", "fp32", True),
        ("TRITON_F32_DEFAULT", "tf32", "fp32", False),
        ("TRITON_F32_DEFAULT", "ieee", "fp32", True),
        ("IPEX_FP32_MATH_MODE", "a later format", "bf16", False),
        ("CUBLAS_EMULATE_SINGLE_PRECISION", "1", "bf16", False),
        ("NVTE_FP8_DPA_BWD", "1", "bf16", False),
        # A variable is judged before it is redacted or truncated.
        ("XLA_FLAGS", "--xla_dump_to=/tokens --xla_gpu_enable_fp8_gemm=true", "bf16", False),
        ("XLA_FLAGS", f"{1000 * '-'} --xla_gpu_enable_fp8_gemm=true", "bf16", False),
        ("XLA_FLAGS", f"{20_000 * '-'} --xla_gpu_enable_fp8_gemm=true", "bf16", False),
        ("XLA_FLAGS", "--xla_dump_to=s3://me@host --xla_gpu_enable_fp8_gemm=true", "bf16", False),
        ("LD_PRELOAD", "https://me:hunter2@host/libfast.so", "bf16", False),
        ("NVIDIA_SECRET_MODE", "1", "bf16", False),
        ("NVIDIA_API_KEY", "hunter2", "bf16", True),
        ("TF_TOKEN_app_terraform_io", "hunter2", "bf16", True),
        ("MPLCONFIGDIR", "/tmp", "bf16", True),
    ],
)
def test_no_variable_lowers_what_is_stated_or_uses_what_was_compiled_before(
    name: str, value: str, precision: str, kept: bool
) -> None:
    check = ENVIRONMENT.check(Environment([{}, recorded_variables({name: value})], precision))
    assert check.passed is kept
    assert all(reason.startswith(name) for reason in check.failures)
    assert "hunter2" not in str(check)


@pytest.mark.parametrize("name", ["CUBLAS_EMULATE_SINGLE_PRECISION", "NVTE_FP8_DPA_BWD"])
def test_a_librarys_variable_is_stated_with_its_value(name: str) -> None:
    check = ENVIRONMENT.check(Environment([{}, recorded_variables({name: "1"})], "bf16"))
    assert check.found == f"{name}=1"


@pytest.mark.parametrize(
    ("rule", "planned", "found", "failures"),
    [
        (ENVIRONMENT,
         Environment([{"LD_PRELOAD": "libtcmalloc.so", "OMP_NUM_THREADS": "8"}], "bf16"),
         "LD_PRELOAD=libtcmalloc.so", []),
        (ENVIRONMENT,
         Environment([recorded_variables({"LD_AUDIT": "a.so", "LD_PRELOAD": "/k/keylib.so",
                                          "PYTHONPATH": "/mine"})], "bf16"),
         "LD_AUDIT=a.so, LD_PRELOAD=/k/keylib.so, PYTHONPATH=/mine", []),
        (ENVIRONMENT, Environment([], "bf16", ["r0 did not record its variables"]),
         "no override", ["r0 did not record its variables"]),
        (PRECISION, Precisions(["fp32", "bf16", "fp16"]), "bf16, fp16, fp32", []),
        (PRECISION, Precisions(["bf16", "fp8"], {"cuBLAS": "tf32"}), "bf16, fp8; cuBLAS tf32",
         ["fp8; at least FP16 is required"]),
        (CLOCK_START, "first", "first", []),
        (CLOCK_START, "all", "all", ["all; loading and staging would lie outside the clock"]),
        (HOURS, 1.0, "1 h", []),
        (HOURS, 0.999, "0.999 h", ["0.999 h; at least 1 h is required"]),
    ],
)  # fmt: skip
def test_a_plan_states_what_was_found(
    rule: Rule[Any], planned: object, found: str, failures: list[str]
) -> None:
    result = rule.check(planned)
    assert (result.found, list(result.failures)) == (found, failures)


def imagenet(**changed: object) -> DatasetInfo:
    return IMAGENET.model_copy(update=changed)


@pytest.mark.parametrize(
    ("infos", "failures"),
    [
        ([imagenet()], []),
        ([imagenet(), imagenet(sha256="1" * 64)], ["replicas had 2 different datasets"]),
        ([imagenet(inputs={"image": TensorSpec(shape=(64, 64, 3))})],
         ["images of (64, 64, 3); (224, 224, 3) is required"]),
        ([imagenet(inputs={"voxels": TensorSpec(shape=(64, 64))})],
         ["images of None; (224, 224, 3) is required"]),
        ([imagenet(name="digits")], ["digits; ImageNet is required"]),
        ([imagenet(classes=None)], ["None classes; ImageNet has 1,000"]),
        ([imagenet(validation_samples=10)], ["10 validation samples; ImageNet has 50,000"]),
        ([imagenet(train_samples=120)], ["120 train samples; ImageNet has 1,281,167"]),
        ([imagenet(storage_format="raw")],
         ["images stored as raw; dataset.storage_format is jpeg"]),
    ],
)  # fmt: skip
def test_the_dataset_is_imagenet_by_its_numbers(
    infos: list[DatasetInfo], failures: list[str]
) -> None:
    assert list(DATASET.check(Datasets(infos, "jpeg")).failures) == failures


@pytest.mark.parametrize(
    ("archives", "failures"),
    [
        (ARCHIVES["imagenet"], []),
        ({}, [
            "it was not prepared from the official archives, and SHA-256 abababababab is not known "
            "to be theirs; prepare it from the archives"
        ]),
        (dict.fromkeys(ARCHIVES["imagenet"], "0" * 32), [
            "it was prepared from archives whose MD5 differs from the published one"
        ]),
    ],
)  # fmt: skip
def test_the_dataset_is_known_by_its_content(archives: dict[str, str], failures: list[str]) -> None:
    found = CONTENT.check(Datasets([imagenet(archives=dict(archives))], "jpeg"))
    assert list(found.failures) == failures


@pytest.mark.parametrize("stored", ["resized", "raw"])
def test_resized_images_are_declared_in_the_open_division(stored: str) -> None:
    config = load_config("imagenet", [f"dataset.storage_format={stored}"])
    assert division_of(config) is Division.OPEN
    (reason,) = CLOSED_SETTINGS.check(config).failures
    assert reason == f"dataset.storage_format is {stored}; jpeg is required"
    assert [str(each) for each in declared(config)] == [
        f"dataset.storage_format {stored} (closed: jpeg)"
    ]
    info = IMAGENET.model_copy(update={"storage_format": stored})
    assert DATASET.check(Datasets([info], config.dataset.storage_format)).passed
    assert not DATASET.check(Datasets([IMAGENET], config.dataset.storage_format)).passed


@pytest.mark.parametrize("name", ["sitecustomize", "_virtualenv"])
def test_a_planned_run_is_refused_if_python_imports_code_when_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    released = {"aiperf-hpc": VERSION, FILES: RELEASED}
    before = RELEASE.check(code_here(released, ())).failures
    module = ModuleType(name)
    module.__file__ = str(tmp_path / f"{name}.py")
    monkeypatch.setitem(sys.modules, name, module)
    after = RELEASE.check(code_here(released, ())).failures
    said = "belongs to no installed distribution; remove it or start without it"
    assert {*after} - {*before} == {f"{module.__file__} {said}"}
