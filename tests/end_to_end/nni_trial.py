"""A trial of the tested experiment: the example's, but for three that go wrong."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import nni

from aiperf_hpc.graph import Graph

EXAMPLE = Path(__file__).parents[2] / "examples" / "nni" / "trial.py"
FAILS, REPORTS_NAN, NEVER_ASKS = 1, 2, 3
"""Trials by NNI's number of the process, which says nothing of the parameters that it takes."""


def main() -> None:
    number = nni.get_sequence_id()
    if number == NEVER_ASKS:
        raise SystemExit("dies before it has parameters")
    if number not in (FAILS, REPORTS_NAN):
        runpy.run_path(str(EXAMPLE), run_name="__main__")
        return
    parameters = nni.get_next_parameter()
    name, graph = parameters["trial"], Graph.from_json(parameters["graph"])
    result = {"trial": name, "hash": graph.hash, "accuracy": None, "job": nni.get_trial_id()}
    (Path(sys.argv[1]) / f"{name}.json").write_text(json.dumps(result))
    if number == FAILS:
        raise SystemExit("fails")
    nni.report_final_result(float("nan"))


if __name__ == "__main__":
    main()
