"""Which imported files are of no distribution, or changed since their installation."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from base64 import urlsafe_b64encode
from pathlib import Path
from types import ModuleType

import pytest
from tests.support.source_tree import ROOT

from aiperf_hpc.integrity.imports import find_imports
from aiperf_hpc.integrity.release import PACKAGE

FIND = """
import json, sys
sys.path += sys.argv[2:]
for name in sys.argv[1].split():
    __import__(name)
from aiperf_hpc.integrity.imports import find_imports
print(json.dumps(find_imports(sys.modules)))
"""
HERE = next(path for path in sys.path if path.endswith("site-packages"))


class Environment:
    """A virtual environment, in which a process imports modules."""

    def __init__(self, root: Path) -> None:
        command = [sys.executable, "-m", "venv", "--without-pip", str(root)]
        subprocess.run(command, check=True)
        (self.site,) = root.glob("lib/python*/site-packages")
        self.root = root
        self.path: list[Path] = []

    def install(self, name: str, text: str, recorded: str | None = None) -> Path:
        """Install a distribution with one file, and with another one in its RECORD if given."""
        file, folder = self.site / name, self.site / f"{Path(name).stem}-1.0.dist-info"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        content = (text if recorded is None else recorded).encode()
        digest = urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: {Path(name).stem}\nVersion: 1.0\n")
        rows = f"{name},sha256={digest},{len(content)}\n{folder.name}/RECORD,,\n"
        (folder / "RECORD").write_text(rows)
        return file

    def found(self, modules: str = "") -> tuple[dict[str, str], list[str]]:
        """Return foreign and modified files of a process that imports modules."""
        path = ":".join(map(str, [*self.path, ROOT / "src"]))
        done = subprocess.run(
            [self.root / "bin" / "python", "-c", FIND, modules, HERE],
            env={"PYTHONPATH": path, "PATH": f"{self.root}/bin:/usr/bin:/bin"},
            cwd=self.root, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        foreign, modified = json.loads(done.stdout.splitlines()[-1])
        return foreign, modified


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(tmp_path / "env")


def written(path: Path, text: str = "x = 1\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def module(file: str) -> ModuleType:
    """Return a module of a file."""
    made = ModuleType("made")
    made.__file__ = file
    return made


def test_all_that_replaces_code_is_found(environment: Environment) -> None:
    elsewhere = environment.root / "elsewhere"
    environment.path.append(elsewhere)
    files = [
        written(environment.site / "sitecustomize.py"),
        written(environment.site / "start.pth", "import json\n"),
        written(environment.site / "marked.pth", "\ufeffimport json\n"),
        written(elsewhere / "colorsys.py"),  # Of the standard library.
        written(elsewhere / "psutil" / "__init__.py"),  # Of a distribution.
        written(environment.root / "chunk.py"),  # In the working directory.
    ]
    digests = {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    assert environment.found("colorsys psutil chunk") == (digests, [])


def test_code_in_a_bytecode_cache_of_this_package_is_found() -> None:
    file = str(PACKAGE / "core" / "__pycache__" / "sitecustomize.py")
    assert find_imports({"sitecustomize": module(file)}).foreign.keys() == {file}
    assert find_imports({"own": module(str(PACKAGE / "clock.py"))}) == ({}, ())


@pytest.mark.parametrize(
    ("name", "searched", "found"),
    [
        ("generated_1.py", [], False),
        ("generated_1.py", [""], False),
        ("generated_1/ab/kernel.py", [""], False),
        ("generated_1/sitecustomize.py", [], True),
        ("generated_1/usercustomize/__init__.py", [], True),
        ("generated_1/psutil.py", ["generated_1"], True),
        ("generated_1/psutil/__init__.py", ["generated_1"], True),
    ],
)
def test_generated_modules_are_not_found_unless_they_replace_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, searched: list[str], found: bool
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, *(str(tmp_path / each) for each in searched)])
    file = str(written(tmp_path / name))
    foreign = find_imports({"it": module(file)}, (str(tmp_path / "generated_"),)).foreign
    assert (file in foreign) == found


def _in_an_archive(environment: Environment) -> str:
    environment.install("zipped.py", "")
    archive = environment.root / "archive.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        for path in [environment.site / "zipped.py", *environment.site.glob("zipped-*/*")]:
            opened.write(path, path.relative_to(environment.site))
            path.unlink()
    environment.path.append(archive)
    return "zipped"


def _of_conda(environment: Environment) -> str:
    """Install a file in which conda wrote its prefix, and one of a package without RECORD."""
    config = environment.install("config.py", "prefix = 1\n", "prefix = 0\n")
    plain = written(environment.site / "plain.py")
    rows = [
        {"_path": str(path.relative_to(environment.root)),
         "sha256_in_prefix": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in (config, plain)
    ]  # fmt: skip
    written(
        environment.root / "conda-meta" / "a-1.json", json.dumps({"paths_data": {"paths": rows}})
    )
    return "config plain"


def _without_a_record(environment: Environment) -> str:
    written(environment.site / "old.py")
    metadata = environment.site / "old-1.0.egg-info"
    written(metadata / "PKG-INFO", "Name: old\nVersion: 1.0\n")
    written(metadata / "installed-files.txt", "../old.py\nPKG-INFO\n")
    return "old"


def _namespace(environment: Environment) -> str:
    environment.install("space/part.py", "")
    return "space.part"


def _touched(environment: Environment) -> str:
    environment.install("touched.py", "x = 1\n").touch()
    return "touched"


def test_what_is_installed_is_not_found(environment: Environment) -> None:
    installs = (_in_an_archive, _of_conda, _without_a_record, _namespace, _touched)
    modules = [install(environment) for install in installs]
    assert environment.found(" ".join([*modules, "numpy optuna setuptools pytest coverage"])) == (
        {},
        [],
    )


def test_startup_files_that_cannot_be_read_are_found(environment: Environment) -> None:
    dangling, folder = environment.site / "dangling.pth", environment.site / "folder.pth"
    dangling.symlink_to("missing")
    folder.mkdir()
    assert environment.found() == ({str(dangling): "", str(folder): ""}, [])


DAMAGED = [b"sha256=\xff,0", b"sha256=abc", b",,", b"sha256=a,0", "sha256=\u00e9,0".encode()]
"""Not UTF-8, of two columns, of four, no base64, not ASCII."""


def test_a_file_in_a_damaged_record_has_no_known_owner(environment: Environment) -> None:
    files = set()
    for number, row in enumerate(DAMAGED):
        name = f"own{number}.py"
        files.add(str(environment.install(name, "")))
        record = environment.site / f"own{number}-1.0.dist-info" / "RECORD"
        record.write_bytes(name.encode() + b"," + row + b"\n")
    foreign, modified = environment.found(" ".join(f"own{n}" for n in range(len(DAMAGED))))
    assert foreign.keys() == files
    assert modified == []


def test_a_file_in_damaged_lists_of_conda_has_no_known_owner(environment: Environment) -> None:
    file = written(environment.site / "own.py")
    texts = ("{", "[]", '{"paths_data": null}', '{"paths_data": {"paths": [{"sha256": ""}, null]}}')
    for number, text in enumerate(texts):
        written(environment.root / "conda-meta" / f"own-{number}.json", text)
    assert environment.found("own")[0].keys() == {str(file)}


def test_changed_files_of_distributions_are_found(environment: Environment) -> None:
    """Of the same size, of another, and one that Python runs when it starts."""
    changes = {"sgd.py": "rate = 0.2\n", "adam.py": "rate = 0.10\n", "start.pth": "import csv\n"}
    files = {
        environment.install(name, "import json\n" if name == "start.pth" else "rate = 0.1\n"): text
        for name, text in changes.items()
    }
    assert environment.found("sgd adam") == ({}, [])
    for file, text in files.items():
        file.write_text(text)
    assert environment.found("sgd adam") == ({}, sorted(map(str, files)))


def test_a_changed_file_of_conda_is_found(environment: Environment) -> None:
    modules = _of_conda(environment)
    file = written(environment.site / "plain.py", "x = 2\n")
    assert environment.found(modules) == ({}, [str(file)])


def test_a_file_of_the_systems_packages_is_known(environment: Environment) -> None:
    """Debian and Fedora remove RECORD, and Debian has a sitecustomize."""
    file = written(environment.site / "sitecustomize.py")
    assert environment.found()[0].keys() == {str(file)}
    command = written(environment.root / "bin" / "dpkg-query", f"#!/bin/sh\necho 'a, b: {file}'\n")
    command.chmod(0o755)
    assert environment.found() == ({}, [])
