"""What each of several factors contributes: ``aiperf study``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from aiperf_hpc.primary.cli.output import say, say_document
from aiperf_hpc.primary.cli.parser import Commands
from aiperf_hpc.primary.file_system import require_writable


def add_study(commands: Commands) -> None:
    """Add ``study``."""
    help_text = "measure what each of several factors contributes, alone and within the whole"
    study = commands.add_parser("study", help=help_text, description=help_text)
    study.add_argument("file", type=Path, metavar="FILE", help="the study's YAML file")
    study.add_argument(
        "--out", type=Path, metavar="DIR", help="where it is kept; default: studies/NAME"
    )
    study.add_argument("--dry-run", action="store_true", help="print the runs that are to be made")
    study.add_argument("--json", action="store_true", help="print JSON")
    study.set_defaults(command=_study)


def _study(options: argparse.Namespace) -> int:
    from aiperf_hpc.primary.analyze.document import as_json
    from aiperf_hpc.primary.study.conduct import StudyFolder, conduct
    from aiperf_hpc.primary.study.plan import check, in_turn, read_study
    from aiperf_hpc.primary.study.result import lines

    study = read_study(options.file)
    check(study)
    folder = StudyFolder(options.out or Path("studies") / study.name)
    if options.dry_run:
        for variation, repeat in in_turn(study):
            settings = " ".join(variation.assignments(study))
            say(f"{variation.name}, run {repeat} of {study.repeats}: {settings}".rstrip(": "))
        return 0
    require_writable(folder.root, "the study", "--out")
    folder.begin(study)
    result = conduct(study, folder, _say_beside)
    folder.keep(result)
    if options.json:
        say_document(as_json(result.model_dump(mode="json")))
    else:
        say("\n".join(lines(result)))
        say(f"written to {folder.result} and {folder.plot}")
    return 0 if result.complete else 1


def _say_beside(text: str) -> None:
    """Print a line where it is in no way of JSON."""
    sys.stderr.write(f"{text}\n")
