"""``python -m aiperf_hpc.replica.data``: prepare a dataset's folder, or say what it holds."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NoReturn, cast

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.errors import AIPerfError, DatasetError, UsageError
from aiperf_hpc.replica.data import cifar10, dataset_names, imagenet, load_dataset
from aiperf_hpc.replica.data.staging import Options
from aiperf_hpc.signals import Interruption, interruptible
from aiperf_hpc.streams import ascii_json, print_in_any_locale
from aiperf_hpc.trial import DatasetInfo

_PREPARERS: dict[str, Callable[[Path, Path, Options], DatasetInfo]] = {
    "cifar10": cifar10.prepare,
    "imagenet": imagenet.prepare,
}
_VERIFIERS: dict[str, Callable[[Path, int], None]] = {"imagenet": imagenet.verify}
"""What verifies a folder, for datasets that are not checked to the last byte whenever they are
loaded."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    print_in_any_locale()
    try:
        with interruptible():
            parsed = _parser().parse_args(arguments)
            parsed.run(parsed)
    except AIPerfError as error:
        sys.stderr.write(f"aiperf: {error}\n")
        return error.exit_status
    except Interruption as interruption:
        sys.stderr.write("aiperf: interrupted; nothing is left behind\n")
        return interruption.exit_status
    return 0


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see `aiperf data --help`")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="aiperf data", description=__doc__)
    commands = parser.add_subparsers(required=True, parser_class=_Parser)
    prepare = commands.add_parser("prepare", help="make a dataset's folder from its source")
    prepare.add_argument("name", metavar="NAME", choices=dataset_names())
    prepare.add_argument("--from", dest="source", type=Path, required=True, metavar="SOURCE")
    prepare.add_argument("--to", dest="target", type=Path, required=True, metavar="FOLDER")
    prepare.add_argument("--shards", type=int, metavar="N", help="training shards (imagenet)")
    prepare.set_defaults(run=_prepare)
    describe = commands.add_parser("describe", help="check a dataset and print what it is as JSON")
    describe.add_argument(
        "name",
        metavar="NAME",
        choices=[*dataset_names(), "-"],
        help="a dataset; - reads its configuration, JSON, from standard input",
    )
    describe.add_argument("--path", type=Path, metavar="FOLDER", help="where it was prepared")
    describe.add_argument("--verify", action="store_true", help="read every byte (imagenet)")
    describe.set_defaults(run=_describe)
    return parser


def _prepare(arguments: argparse.Namespace) -> None:
    if arguments.name not in _PREPARERS:
        raise UsageError(f"dataset '{arguments.name}' needs no preparation")
    options = Options(arguments.shards, _cores(), _say, _complain)
    info = _PREPARERS[arguments.name](arguments.source, arguments.target, options)
    _say(
        f"{info.name}: {info.train_samples} training and {info.validation_samples} validation "
        f"images of {info.classes} classes in {arguments.target}, SHA-256 {info.sha256}"
    )


def _describe(arguments: argparse.Namespace) -> None:
    if arguments.name == "-":
        # The primary's way: a whole dataset section as JSON on standard input.
        config = DatasetConfig.model_validate_json(sys.stdin.buffer.read())
        _say(ascii_json(load_dataset(config, _cores()).info.model_dump_json()))
        return
    name = cast('Literal["cifar10", "digits", "imagenet", "synthetic"]', arguments.name)
    if arguments.path is None and name in _PREPARERS:
        raise DatasetError(f"dataset '{name}': give its folder with --path FOLDER")
    dataset = load_dataset(DatasetConfig(name=name, path=arguments.path), _cores())
    if arguments.verify and name in _VERIFIERS:
        _VERIFIERS[name](arguments.path, _cores())
    _say(ascii_json(dataset.info.model_dump_json(indent=1)))


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _complain(line: str) -> None:
    sys.stderr.write(f"aiperf: {line}\n")


if __name__ == "__main__":
    sys.exit(main())
