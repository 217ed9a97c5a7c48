"""Run an experiment in a separate process: `python run_tiny.py REQUEST.json RESULT.json`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from flows import (
    fork_experiment,
    resume_experiment,
    run_experiment,
    run_sweep,
    run_without_prefect,
)
from ratchet.parameters.settings import ExperimentSettings


def main(source: Path, target: Path) -> None:
    """Do what the request contains, and write the result."""
    request = json.loads(source.read_text())
    settings = ExperimentSettings.from_dict(request["settings"])
    if request["action"] == "run":
        result = run_experiment(
            request["hyper_params"],
            settings,
            arms=request["arms"],
            name="tiny",
            force=request["force"],
        )
    elif request["action"] == "sweep":
        parallel = request["parallel"]
        run_sweep(request["hyper_params"], request["grid"], settings, parallel=parallel)
        return
    elif request["action"] == "run_without_prefect":
        result = run_without_prefect(request["hyper_params"], settings, name="tiny")
        assert "prefect" not in sys.modules
    elif request["action"] == "resume":
        result = resume_experiment(request["run"], settings)
    else:
        result = fork_experiment(request["run"], request["from"], request["changes"], settings)
    heavy = [name for name in ("mlflow", "plotly", "torchrl") if name in sys.modules]
    target.write_text(json.dumps({**result.to_dict(), "heavy": heavy}))


if __name__ == "__main__":  # worker processes import this file
    main(Path(sys.argv[1]), Path(sys.argv[2]))
