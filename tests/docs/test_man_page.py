"""The manual page: it is the present help, troff accepts it, and an installation has it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.cli.test_command_line import FOR_PEOPLE
from tests.support.cache import unavailable
from tests.support.source_tree import copy_tree, unpack_wheel

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "aiperf.1"


def test_the_page_has_the_present_help() -> None:
    program = ROOT / "docs" / "hooks" / "man_page.py"
    made = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True)
    assert PAGE.read_text("utf-8") == made.stdout, "`make man` writes it"


def test_troff_shows_every_command_without_a_warning() -> None:
    groff = shutil.which("groff")
    if groff is None:
        unavailable("no groff on this machine")
    command = [groff, "-man", "-ww", "-Kutf8", "-Tutf8", "-P-c", "-rLL=200n", str(PAGE)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert shown.stderr == ""
    text = re.sub(".\b", "", shown.stdout)
    assert [name for name in FOR_PEOPLE if f"\n   aiperf {name} " not in text] == []
    assert "\n       --nodes N|MIN-MAX\n" in text
    assert "$ aiperf start --nodes 2 --hours 0.05\n" in text
    assert re.search(r"\nEXIT STATUS\n +0 +done\n", text)


def test_an_installation_has_it(tmp_path: Path) -> None:
    installed = unpack_wheel(copy_tree(tmp_path / "tree"), tmp_path / "installed")
    (page,) = installed.glob("*.data/data/share/man/man1/aiperf.1")
    assert page.read_bytes() == PAGE.read_bytes()
