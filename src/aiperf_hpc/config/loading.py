"""Loading a configuration from presets, YAML files and ``--set``, and comparing it with a preset.

An error message names the key, the value and its range, or the most similar valid key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from aiperf_hpc.config.run import RunConfig
from aiperf_hpc.earlier_names import SETTINGS
from aiperf_hpc.errors import ConfigError, UsageError, did_you_mean, restated
from aiperf_hpc.streams import cut
from aiperf_hpc.untrusted.bounds import message_of
from aiperf_hpc.untrusted.files import MOST_YAML_BYTES, parsed_yaml, text_of

MOST_ERRORS, MOST_SAID = 10, 300
"""Maximum number of reported errors of a configuration, and columns of each."""


def preset_names() -> list[str]:
    """Return the names of the presets in ``configs/``."""
    folder = resources.files("aiperf_hpc.configs")
    return sorted(e.name[:-5] for e in folder.iterdir() if e.name.endswith(".yaml"))


def preset_text(name: str) -> str:
    """Return a preset's YAML. Raises ConfigError if the name is unknown."""
    if name not in preset_names():
        raise ConfigError(f"no preset '{name}'{did_you_mean(name, preset_names())}")
    return (resources.files("aiperf_hpc.configs") / f"{name}.yaml").read_text("utf-8")


def load_config(source: str | Path, assignments: Iterable[str] = ()) -> RunConfig:
    """Read a preset or a YAML file and apply ``key=value`` assignments over it.

    Args:
        source: name of a preset, or path of a YAML file.
        assignments: assignments ``section.key=value``, with values in YAML.

    Raises:
        ConfigError: there is no such preset or file, the text is not YAML, a key is unknown
            (reported with the most similar one), or a value is out of range (reported with the
            range).
    """
    name = str(source)
    if name in preset_names():
        values = _parse(preset_text(name), f"preset {name}")
    elif Path(name).suffix in (".yaml", ".yml") or Path(name).exists():
        with restated(f"cannot read the configuration {name}", ConfigError, caught=UsageError):
            text = text_of(Path(name), MOST_YAML_BYTES)
        values = _parse(text, name)
    else:
        hint = did_you_mean(name, preset_names()) or f"; presets: {', '.join(preset_names())}"
        raise ConfigError(f"no preset and no file '{name}'{hint}")
    for assignment in assignments:
        _assign(values, assignment)
    return validate(values, name)


def validate(values: Mapping[str, Any], where: str) -> RunConfig:
    """Create a configuration from plain values. Raises ConfigError with ``where`` as the source."""
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        found = error.errors(include_url=False)
        texts = {_key(each): cut(_describe(each), MOST_SAID) for each in found[:MOST_ERRORS]}
        more = [f"and {len(found) - MOST_ERRORS} more"] * (len(found) > MOST_ERRORS)
        faults = {key: text.removeprefix(f"{key}: ") for key, text in texts.items()}
        raise ConfigError(f"{where}: {'; '.join([*texts.values(), *more])}", faults) from None


def _parse(text: str, where: str) -> dict[str, Any]:
    try:
        values = parsed_yaml(text)
    except UsageError as error:
        raise ConfigError(f"{where} is {error}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{where} must be a mapping of sections, not a {type(values).__name__}")
    return cast("dict[str, Any]", values)


def _assign(values: dict[str, Any], assignment: str) -> None:
    key, equals, text = assignment.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {assignment}: write it as key=value, e.g. training.batch_size=64")
    value = _parse(f"value: {text}", f"--set {assignment}")["value"]
    *sections, last = key.strip().split(".")
    target = values
    for section in sections:
        target = target.setdefault(section, {})
        if not isinstance(target, dict):
            raise ConfigError(f"--set {assignment}: '{section}' is a value, not a section")
    target[last] = value


def _key(error: ErrorDetails) -> str:
    return ".".join(map(str, error["loc"]))


def _describe(error: ErrorDetails) -> str:
    location, key = [part for part in error["loc"] if isinstance(part, str)], _key(error)
    if error["type"] == "extra_forbidden":
        present = SETTINGS.get(".".join(location))
        name, known = location[-1], _model(location[:-1]).model_fields
        close = did_you_mean(name, known, key.removesuffix(name))
        hint = f"; did you mean '{present}'?" if present else close
        return f"unknown key '{key}'{hint}"
    message = message_of(error)
    if not key:
        return message
    limits = _range(_field(location))
    got = error.get("input")
    shown = f" (got {got!r}{limits})" if not isinstance(got, dict) else ""
    names = re.findall("'([^']*)'", error.get("ctx", {}).get("expected", ""))
    return f"{key}: {message}{shown}{did_you_mean(str(got), names)}"


def _model(location: list[str]) -> type[BaseModel]:
    model: type[BaseModel] = RunConfig
    for part in location:
        annotation = model.model_fields[part].annotation
        # An optional section has the type "Section | None".
        annotation = next(iter(get_args(annotation)), annotation)
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            break
        model = annotation
    return model


def _field(location: list[str]) -> FieldInfo | None:
    return _model(location[:-1]).model_fields.get(location[-1]) if location else None


def _range(field: FieldInfo | None) -> str:
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    parts = [
        f"{sign} {_plain(getattr(limit, name))}"
        for limit in (field.metadata if field else ())
        for name, sign in signs.items()
        if getattr(limit, name, None) is not None
    ]
    return f"; the range is {' and '.join(parts)}" if parts else ""


def _plain(limit: float) -> str:
    return str(limit) if isinstance(limit, int) else f"{limit:g}"


OFFICIAL = "imagenet"
"""Default preset for comparison, if a configuration is not from a preset of this version."""


class Difference(NamedTuple):
    """A key whose value differs from the preset's."""

    key: str
    """Dotted key, as for ``--set``."""
    value: Any
    """Value in the configuration as plain data; None also if the key is absent."""
    preset: Any
    """Value in the preset as plain data; None also if the key is absent."""


def preset_of(config: RunConfig) -> str:
    """Return the preset for comparison: the configuration's own, or the official one."""
    return config.preset if config.preset in preset_names() else OFFICIAL


def differences(config: RunConfig) -> list[Difference]:
    """Return the differences from the preset for comparison, in the order of the keys."""
    base = load_config(preset_of(config)).settled().model_dump(mode="json")
    return list(_differences(config.settled().model_dump(mode="json"), base))


def _differences(
    one: Mapping[str, Any], other: Mapping[str, Any], above: str = ""
) -> Iterator[Difference]:
    for key in dict.fromkeys((*one, *other)):
        mine, theirs = one.get(key), other.get(key)
        if isinstance(mine, dict) and isinstance(theirs, dict):
            yield from _differences(mine, theirs, f"{above}{key}.")
        elif mine != theirs:
            yield Difference(f"{above}{key}", mine, theirs)
