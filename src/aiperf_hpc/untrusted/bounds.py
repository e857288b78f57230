"""Limits of numbers, times and names in untrusted records and configurations.

A number of 300 digits is valid JSON, but as a float it is infinite or raises OverflowError, and a
time a million years ahead is not a date. Values beyond these limits are rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails

MOST_WHOLE: Final = 2**900
"""Maximum of any integer, including sums of products of counts. Sums are finite as floats."""
MOST_REAL: Final = 1e270
"""Maximum of any real number, of about the same magnitude."""
MOST_COUNT: Final = 2**63 - 1
"""Maximum of a count; the product of ten counts is below the limit of all numbers."""
LARGEST: Final = 1e30
"""Maximum of a recorded real number, far above any time, price or quality."""
MOST_SIZE: Final = 2**31 - 1
"""Maximum size of an array axis that frameworks can index."""
MOST_AXES: Final = 8
"""Maximum number of axes of a sample, without the batch axis; a volume has 4."""
LATEST_UTC: Final = 253_402_300_799.0
"""End of the year 9999 in UTC seconds, the last valid date."""
MOST_HOURS: Final = 24.0 * 366
"""Maximum duration of a run and of a score's interval: one year."""
MOST_NODES: Final = 1_000_000
"""Maximum number of nodes of a run: a hundred times those of the largest existing machine."""
MOST_NAME: Final = 200
"""Maximum length of a name; file systems allow 255 bytes, and suffixes need space."""

_IN_WORDS: Final[dict[str, str]] = {}


def in_words(pattern: str, words: str) -> str:
    """Return a regular expression and register its description for messages: "should be ..."."""
    _IN_WORDS[pattern] = words
    return pattern


_KINDS: Final = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("tuple_type", "list_type"), "a list"),
    **dict.fromkeys(("model_type", "dict_type"), "a mapping of keys to values"),
    "string_type": "text",
    "path_type": "a path",
}
"""Descriptions of expected values, by pydantic error type."""
_PRESENCE: Final = {"missing": "is missing", "extra_forbidden": "is not known"}


def message_of(error: ErrorDetails | Mapping[str, Any]) -> str:
    """Return the message for a value that pydantic rejects, such as "should be a whole number"."""
    pattern = error.get("ctx", {}).get("pattern", "")
    expected = _IN_WORDS.get(pattern) or _KINDS.get(error["type"])
    if expected is not None:
        return f"should be {expected}"
    if error["type"] in _PRESENCE:
        return _PRESENCE[error["type"]]
    said = str(error["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    return f"{said[:1].lower()}{said[1:]}"


def first_fault(error: ValidationError, whole: str = "") -> str:
    """Return the location and the problem of the first rejected value: "key.part: is missing".

    Args:
        error: error of the validation.
        whole: name of the whole document, for an error that has no location.
    """
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"] if part != "[key]") or whole
    return f"{where[:200]}: {message_of(first)}" if where else message_of(first)


NAME: Final = in_words(
    r"^[^\x00-\x1f\x7f/.][^\x00-\x1f\x7f/]*$",
    "a file name without '/' or control characters that does not begin with '.'",
)
"""Pattern of a file name: without slashes and control characters, and not hidden."""
SHA256: Final = in_words("^[0-9a-f]{64}$", "a SHA-256, 64 hexadecimal digits in lower case")
Name = Annotated[str, Field(pattern=NAME, max_length=MOST_NAME)]
Count = Annotated[int, Field(ge=0, le=MOST_COUNT)]
Number = Annotated[int, Field(ge=1, le=MOST_COUNT)]
"""A positive count, or a number that starts at one."""
Finite = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
Utc = Annotated[float, Field(ge=0.0, le=LATEST_UTC, allow_inf_nan=False)]
"""UTC seconds."""


def _bound(schema: Any, *, finite: bool) -> None:  # noqa: ANN401 -- dicts and lists of any form
    """Add bounds to the numbers in a model's own fields."""
    if isinstance(schema, dict):
        kind = schema.get("type")
        if kind == "model":  # A nested model bounds its own fields.
            return
        real = kind == "float" and (finite or schema.get("allow_inf_nan") is False)
        most = MOST_WHOLE if kind == "int" else MOST_REAL if real else None
        if most is not None:
            if not {"le", "lt"} & schema.keys():
                schema["le"] = most
            if not {"ge", "gt"} & schema.keys():
                schema["ge"] = -most
            return
        for key, part in schema.items():
            if key not in ("metadata", "serialization", "config", "default"):
                _bound(part, finite=finite)
    elif isinstance(schema, list):
        for part in schema:
            _bound(part, finite=finite)


def _leave_out(schema: Any) -> None:  # noqa: ANN401 -- dicts and lists of any form
    if isinstance(schema, dict):
        for key, sign in (("maximum", 1), ("minimum", -1)):
            if schema.get(key) in (sign * MOST_WHOLE, sign * MOST_REAL):
                del schema[key]
        for part in schema.values():
            _leave_out(part)
    elif isinstance(schema, list):
        for part in schema:
            _leave_out(part)


class Bounded(BaseModel):
    """Base class of records and configurations: every number is bounded.

    The limits above apply if a field has none. A float that may be infinite or NaN, such as the
    loss of a diverged training, is unbounded.
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:  # noqa: ANN401
        schema = handler(source)
        _bound(schema.get("schema"), finite=cls.model_config.get("allow_inf_nan") is False)
        return schema

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Omit the default limits, which would be repeated for every number."""
        made = handler(core_schema)
        _leave_out(handler.resolve_ref_schema(made))
        return made
