"""``aiperf data``."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from aiperf_hpc.cli.parameters import flag, option
from aiperf_hpc.primary.data_progress import run_shown
from aiperf_hpc.streams import warn
from aiperf_hpc.trial import StorageFormat

KILLED = 137


def prepare(
    name: Annotated[
        str, Argument(metavar="NAME", help="cifar10, cosmoflow, deepcam, extremeweather, imagenet.")
    ],
    source: Annotated[
        str | None, option("--from", "ARCHIVE_OR_DIR", "Downloaded archive or folder. [required]")
    ] = None,
    target: Annotated[
        str | None, option("--to", "FOLDER", "New folder. Default: data/NAME.")
    ] = None,
    shards: Annotated[
        str | None, option("--shards", "N", "Number of training shards (not cifar10).")
    ] = None,
    storage_format: Annotated[
        StorageFormat,
        option("--storage-format", "FORMAT", "Format: jpeg, resized or raw (imagenet only)."),
    ] = "jpeg",
    restart: Annotated[bool, flag("--restart", "Discard an interrupted preparation.")] = False,
) -> int:
    """Prepare a dataset for training.

    ImageNet can be read from its archives, class folders, Kaggle's layout, or Hugging Face's
    Parquet files, which require the extra `parquet`. Run the same command again to resume an
    interrupted preparation.

    Examples:
      $ aiperf data prepare cifar10 --from cifar-10-binary.tar.gz
      $ aiperf data prepare imagenet --from /archives/imagenet --to /data/imagenet
      $ aiperf data prepare imagenet --from /archives/imagenet --to /data/raw --storage-format raw
      $ aiperf data prepare cosmoflow --from /archives/cosmoUniverse --to /data/cosmoflow
      $ aiperf data prepare extremeweather --from /archives/climo --to /data/extremeweather
    """
    target = target or f"data/{name}"
    arguments = ["prepare", name, "--to", target]
    arguments += ["--from", source] if source else []  # Checks the name first.
    arguments += ["--shards", shards] if shards else []
    arguments += ["--storage-format", storage_format]
    status = run_shown([*arguments, "--restart"] if restart else arguments)
    if status == KILLED:
        warn(
            "the preparation was ended by SIGKILL; run the same command again to resume it "
            f"from {target}.partial, or to restart it"
        )
    return status


def verify(
    folder: Annotated[str, Argument(metavar="DIR", help="Folder of a prepared dataset.")],
    decode: Annotated[bool, flag("--decode", "Also decode every image (imagenet only).")] = False,
) -> int:
    """Verify a prepared dataset; the exit status is 1 if a file is corrupt.

    Examples:
      $ aiperf data verify /data/imagenet
      $ aiperf data verify /data/imagenet --decode
    """
    return run_shown(["verify", folder, *(["--decode"] if decode else [])])


DATA = {"prepare": prepare, "verify": verify}
"""Prepare or verify a dataset."""
