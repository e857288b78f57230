"""The report of a run for the rules on consistency: as stored, and made of the records again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from aiperf_hpc.integrity.signatures import PublicKey
from aiperf_hpc.results.report import provenance, signing
from aiperf_hpc.results.report.document import Report, as_of_now, make_report
from aiperf_hpc.results.report.files import report_document
from aiperf_hpc.results.report.scaling import Scaling
from aiperf_hpc.results.report.writer import report_files
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.rules.consistency.evidence import Change, Json


class StoredReport:
    """The report of a run; implements ``FinalReport``."""

    def __init__(self, view: RunView) -> None:
        self._view = view

    @cached_property
    def _document(self) -> Report:
        return make_report(self._view)

    @property
    def exists(self) -> bool:
        return provenance.is_final(self._view)

    @property
    def has_grown(self) -> bool:
        return provenance.has_grown(self._view)

    @property
    def signed(self) -> bool:
        return signing.is_signed(self._view.paths)

    @property
    def complete(self) -> bool:
        return provenance.is_complete(self._view)

    def stated(self) -> Any:  # noqa: ANN401 -- whatever was written
        return report_document(self._view.paths)

    def in_this_version(self, stated: Json) -> Json:
        return as_of_now(stated)

    def made(self) -> Json:
        return cast(Json, json.loads(self._document.model_dump_json()))

    def files(self, scaling: object) -> Mapping[Path, bytes]:
        document = self._document
        if scaling is not None:
            document = document.model_copy(update={"scaling": Scaling.model_validate(scaling)})
        return report_files(self._view, document)

    def other_maker(self) -> str | None:
        return provenance.software_difference(provenance.software_of(self._view))

    def score(self) -> Json:
        final = self._view.final()
        return {"operations": final.operations, "ops": final.ops, "regulated": final.regulated}

    def result(self) -> Json:
        resources = self._view.resources()
        divisions = {"division": self._view.judgement().division}
        return {
            "error": self._view.final().error,
            "replicas": resources.replicas,
            "hosts": resources.hosts,
            "accelerators": resources.accelerator_count,
            **(divisions if self._view.manifest.rules > 1 else {}),
        }

    def violated(self) -> set[str]:
        return {each.rule for each in self._view.violations()}

    def named_files(self) -> int:
        return len(provenance.named_files(self._view))

    def changes(self) -> Iterator[Change]:
        return (Change(each.said, each.late) for each in provenance.differences(self._view))

    def signer(self, trusted: Sequence[PublicKey]) -> PublicKey | None:
        return signing.signed_by(self._view.paths, trusted)
