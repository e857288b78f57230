"""Runs the example's experiment to its end, and writes down how it ended.

python nni_session.py FOLDER TRIALS PORT
"""

from __future__ import annotations

import functools
import runpy
import shlex
import sys
import time
from pathlib import Path

from nni.experiment import launcher

EXAMPLE = Path(__file__).parents[2] / "examples" / "nni" / "experiment.py"
TRIAL = Path(__file__).with_name("nni_trial.py")


START_SECONDS = 600
"""NNI gives its service three seconds to answer, which are not enough on a busy machine."""


def main(folder: Path, trials: int, port: int) -> None:
    launcher._check_rest_server = functools.partial(
        launcher._check_rest_server, retry=START_SECONDS
    )
    example = runpy.run_path(str(EXAMPLE))
    experiment = example["make"](folder, trials, concurrency=2, epochs=1)
    experiment.config.trial_command = shlex.join([sys.executable, str(TRIAL), str(folder), "1"])
    try:
        experiment.start(port)
        while (status := experiment.get_status()) not in ("DONE", "ERROR", "STOPPED"):
            time.sleep(0.5)
        (folder / "status").write_text(status)
        # Not tested: it differs from run to run.
        (folder / "compared").write_text(example["compare"](experiment, folder))
    finally:
        experiment.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
