"""A search on scikit-learn's digits as an NNI experiment on this machine.

    python experiment.py FOLDER [--trials 20] [--concurrency 2] [--epochs 3] [--port 8080]

FOLDER gets the search's journal, the trials' weights and results, and NNI's own files. At the end
it says how many of the results that NNI exports stand beside the parameters of another trial.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path

from nni.experiment import CustomAlgorithmConfig, Experiment

TRIAL = Path(__file__).with_name("trial.py")


def make(folder: Path, trials: int, concurrency: int, epochs: int) -> Experiment:
    """Return the experiment, not started."""
    experiment = Experiment("local")
    config = experiment.config
    config.experiment_working_directory = folder / "nni"
    config.trial_code_directory = TRIAL.parent
    config.trial_command = shlex.join([sys.executable, str(TRIAL), str(folder), str(epochs)])
    config.trial_concurrency = concurrency
    config.max_trial_number = trials
    config.tuner = CustomAlgorithmConfig(
        class_name="aiperf_hpc.morphism.search.nni_tuner.AIPerfTuner",
        class_args={
            "journal": str(folder / "search.jsonl"),
            "input_shape": [8, 8, 1],
            "classes": 10,
            "model": {"stem": "cifar", "base_width": 4, "blocks": [1, 1, 1, 1]},
            "seed": 0,
        },
    )
    # Settings of the search. They can be edited in NNI's pages while the experiment runs.
    config.search_space = {"max_operations_ratio": 4.0, "max_morphisms": 2}
    return experiment


def compare(experiment: Experiment, folder: Path) -> str:
    """Return how what NNI exports differs from what the trials themselves have written."""
    written = [json.loads(path.read_text("utf-8")) for path in folder.glob("*.json")]
    ran = {result["job"]: result["trial"] for result in written}
    exported = experiment.export_data()
    wrong = [e for e in exported if e.parameter["trial"] != ran.get(e.trialJobId)]
    return f"NNI exports {len(exported)} results, {len(wrong)} with parameters of another trial"


def main() -> None:
    """Run the experiment to its end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--concurrency", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--port", type=int, default=8080)
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    experiment = make(folder, options.trials, options.concurrency, options.epochs)
    try:
        experiment.run(options.port)
        print(compare(experiment, folder))
    finally:
        experiment.stop()


if __name__ == "__main__":
    main()
