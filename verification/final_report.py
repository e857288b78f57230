"""The report of a run for the rules on consistency: as stored, and made again from the records."""

from __future__ import annotations

import json
from functools import cache, partial
from typing import cast

from aiperf_hpc.results.report import provenance, signing
from aiperf_hpc.results.report.document import Report, make_report
from aiperf_hpc.results.report.files import report_document
from aiperf_hpc.results.report.scaling import Scaling
from aiperf_hpc.results.report.writer import report_files
from aiperf_hpc.results.views.earlier_versions import in_this_version
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.rules.consistency.evidence import Change, FinalReport, Json


def final_report(view: RunView) -> FinalReport:
    """Return the report of a run, which is made again once, at its first use."""
    made = cache(partial(make_report, view))
    return FinalReport(
        exists=partial(provenance.is_final, view),
        has_grown=partial(provenance.has_grown, view),
        signed=partial(signing.is_signed, view.paths),
        complete=lambda: provenance.manifest_of(view).complete,
        stated=partial(report_document, view.paths),
        in_this_version=in_this_version,
        made=lambda: cast(Json, json.loads(made().model_dump_json())),
        files=lambda scaling: report_files(view, _with_scaling(made(), scaling)),
        other_maker=lambda: provenance.software_difference(provenance.manifest_of(view).made_by),
        score=partial(_score, view),
        result=partial(_result, view),
        violated=lambda: {each.rule for each in view.violations()},
        named_files=lambda: len(provenance.named_files(view)),
        changes=lambda: (Change(e.said, e.late) for e in provenance.differences(view)),
        signer=partial(signing.signed_by, view.paths),
    )


def _with_scaling(document: Report, scaling: object) -> Report:
    if scaling is None:
        return document
    return document.model_copy(update={"scaling": Scaling.model_validate(scaling)})


def _score(view: RunView) -> Json:
    final = view.final()
    return {"operations": final.operations, "ops": final.ops, "regulated": final.regulated}


def _result(view: RunView) -> Json:
    resources = view.resources()
    divisions = {"division": view.judgement().division}
    return {
        "error": view.final().error,
        "replicas": resources.replicas,
        "hosts": resources.hosts,
        "accelerators": resources.accelerator_count,
        **(divisions if view.manifest.rules > 1 else {}),
    }
