"""The reference of report.json, from its JSON Schema."""

from __future__ import annotations

from collections.abc import Iterator

from aiperf_hpc.results.report.schema import report_schema
from schema_tables import type_table


def reference() -> Iterator[str]:
    """Yield a table for each type of the schema."""
    schema = report_schema()
    yield "\n## Document"
    yield from type_table("report.json", schema)
    yield "\n## Types"
    for name, part in sorted(schema["$defs"].items()):
        yield from type_table(name, part)
