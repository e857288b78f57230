"""``python -m aiperf_hpc.replica.data``: prepare a dataset's folder, verify or describe it."""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn, get_args

from pydantic import ValidationError

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.datasets import dataset_name
from aiperf_hpc.errors import AIPerfError, DatasetError, UsageError, did_you_mean
from aiperf_hpc.host.processes import Interruption, interruptible
from aiperf_hpc.replica.data import (
    cifar10,
    cosmoflow,
    dataset_names,
    deepcam,
    extremeweather,
    load_dataset,
)
from aiperf_hpc.replica.data.imagenet.sources import prepare as prepare_imagenet
from aiperf_hpc.replica.data.imagenet.verification import verify_folder as verify_imagenet
from aiperf_hpc.replica.data.progress import Progress, ShowProgress
from aiperf_hpc.replica.data.sharded.dataset import Verification
from aiperf_hpc.replica.data.staging import Options
from aiperf_hpc.streams import ascii_json, print_in_any_locale
from aiperf_hpc.trial import DatasetInfo, StorageFormat
from aiperf_hpc.untrusted.bounds import first_fault

_PREPARERS: dict[str, Callable[[Path, Path, Options], DatasetInfo]] = {
    "cifar10": cifar10.prepare,
    "cosmoflow": cosmoflow.prepare,
    "deepcam": deepcam.prepare,
    "extremeweather": extremeweather.prepare,
    "imagenet": prepare_imagenet,
}
_VERIFIERS: dict[str, Callable[[Path, int, ShowProgress], Verification]] = {
    "cosmoflow": cosmoflow.verify,
    "deepcam": deepcam.verify,
    "extremeweather": extremeweather.verify,
}
"""Functions that verify every sample of a folder of shards."""

BROKEN = 1
"""Exit status if a verification found broken files."""


class TextReporter:
    """Writes lines to standard output and problems to standard error. Threads may share it."""

    def say(self, line: str) -> None:
        """Report a line."""
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    def complain(self, line: str) -> None:
        """Report a problem."""
        sys.stderr.write(f"aiperf: {line}\n")

    def progress(self, progress: Progress) -> None:
        """Show nothing: progress is part of the events."""


class EventReporter(TextReporter):
    """Writes events to standard output: one JSON object per line, whose only key is the kind.

    The kinds are ``line`` and ``complaint``, with a text, and ``progress``, with a ``Progress``.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def say(self, line: str) -> None:
        self._write("line", line)

    def complain(self, line: str) -> None:
        self._write("complaint", line)

    def progress(self, progress: Progress) -> None:
        self._write("progress", asdict(progress))

    def _write(self, kind: str, value: object) -> None:
        # The reader may have exited; the work continues.
        with self._lock, suppress(OSError):
            sys.stdout.write(json.dumps({kind: value}) + "\n")
            sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    print_in_any_locale()
    reporter = TextReporter()
    try:
        with interruptible(exits=True):
            parsed = _parser().parse_args(arguments)
            reporter = EventReporter() if parsed.events else reporter
            status: int = parsed.run(parsed, reporter)
            return status
    except AIPerfError as error:
        reporter.complain("; ".join([str(error), *_notes(error)]))
        return error.exit_status
    except Interruption as interruption:
        reporter.complain("; ".join(["interrupted", *_notes(interruption)]))
        return interruption.exit_status


def _notes(error: BaseException) -> list[str]:
    return list(getattr(error, "__notes__", ()))


class _Parser(argparse.ArgumentParser):
    """Reports errors in one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see `aiperf data --help`")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="aiperf data", description=__doc__)
    parser.add_argument("--events", action="store_true", help="print everything as JSON lines")
    commands = parser.add_subparsers(required=True, parser_class=_Parser)
    prepare = commands.add_parser("prepare", help="make a dataset's folder from its source")
    prepare.add_argument("name", metavar="NAME")
    prepare.add_argument("--from", dest="source", type=Path, metavar="SOURCE")
    prepare.add_argument("--to", dest="target", type=Path, required=True, metavar="FOLDER")
    prepare.add_argument("--shards", type=int, metavar="N", help="training shards (imagenet)")
    prepare.add_argument(
        "--storage-format",
        choices=get_args(StorageFormat),
        default="jpeg",
        help="format of stored images (imagenet)",
    )
    prepare.add_argument(
        "--restart", action="store_true", help="discard an interrupted preparation"
    )
    prepare.set_defaults(run=_prepare)
    verify = commands.add_parser("verify", help="check every byte of a prepared folder")
    verify.add_argument("folder", type=Path, metavar="FOLDER")
    verify.add_argument("--decode", action="store_true", help="also decode every image (imagenet)")
    verify.set_defaults(run=_verify)
    describe = commands.add_parser(
        "describe", help="check a dataset and print its description; standard input is its section"
    )
    describe.set_defaults(run=_describe)
    return parser


def _prepare(arguments: argparse.Namespace, reporter: TextReporter) -> int:
    name, source = arguments.name, arguments.source
    if name in dataset_names() and name not in _PREPARERS:
        raise UsageError(f"dataset '{name}' needs no preparation")
    if name not in _PREPARERS:
        raise UsageError(
            f"no dataset '{name}'{did_you_mean(name, _PREPARERS)}; "
            f"datasets to prepare: {', '.join(_PREPARERS)}"
        )
    if arguments.storage_format != "jpeg" and name != "imagenet":
        raise UsageError(f"--storage-format is for imagenet; dataset '{name}' has one format")
    if source is None:
        raise UsageError("missing option '--from'; see `aiperf data prepare --help`")
    if not source.exists():
        raise DatasetError(
            f"--from {source}: no such file or folder in {Path.cwd()}; name the downloaded file or "
            "folder"
        )
    began = time.monotonic()
    options = Options(
        shards=arguments.shards,
        storage_format=arguments.storage_format,
        cores=_cores(),
        restart=arguments.restart,
        report=reporter.say,
        complain=reporter.complain,
        progress=reporter.progress,
    )
    info = _PREPARERS[name](source, arguments.target, options)
    labelled = info.targets.keys() == {"label"}
    what = f"images of {info.classes} classes" if labelled else "samples"
    reporter.say(
        f"{info.name}: {info.train_samples} training and {info.validation_samples} validation "
        f"{what} in {arguments.target} ({time.monotonic() - began:.1f} s)"
    )
    reporter.say(f"SHA-256 {info.sha256}")
    return 0


def _verify(arguments: argparse.Namespace, reporter: TextReporter) -> int:
    folder: Path = arguments.folder
    name, began = dataset_name(folder), time.monotonic()
    what, decode = f"{name}: {folder}", arguments.decode
    unit = "samples"
    if name == "imagenet":
        unit = "images, decoded" if decode else "images"
        found = verify_imagenet(folder, _cores(), decode=decode, progress=reporter.progress)
    elif name not in _PREPARERS:
        raise DatasetError(f"{folder} holds dataset '{name}', which needs no preparation")
    elif decode:
        raise UsageError(f"--decode: the samples of dataset '{name}' are stored decoded")
    elif name in _VERIFIERS:
        found = _VERIFIERS[name](folder, _cores(), reporter.progress)
    else:
        return _verify_by_loading(name, folder, reporter)
    elapsed = f"({time.monotonic() - began:.1f} s)"
    for problem in found.broken:
        reporter.complain(problem)
    if broken := len(found.broken):
        reporter.complain(
            f"{what}: {broken} of {found.files} files are damaged: those above {elapsed}"
        )
        return BROKEN
    reporter.say(f"{what} is intact: {found.files} files, {found.samples} {unit} {elapsed}")
    return 0


def _verify_by_loading(name: str, folder: Path, reporter: TextReporter) -> int:
    """Verify a dataset that is read completely when it is loaded."""
    config = DatasetConfig.model_validate({"name": name, "path": folder})
    try:
        info = load_dataset(config, _cores()).info
    except DatasetError as error:
        reporter.complain(str(error))
        return BROKEN
    samples = info.train_samples + info.validation_samples
    reporter.say(f"{name}: {folder} is intact, {samples} samples")
    return 0


def _describe(arguments: argparse.Namespace, reporter: TextReporter) -> int:
    try:
        config = DatasetConfig.model_validate_json(sys.stdin.buffer.read())
    except ValidationError as error:
        raise UsageError(f"standard input: {first_fault(error, 'the dataset')}") from None
    reporter.say(ascii_json(load_dataset(config, _cores()).info.model_dump_json()))
    return 0


def _cores() -> int:
    return len(os.sched_getaffinity(0))


if __name__ == "__main__":
    sys.exit(main())
