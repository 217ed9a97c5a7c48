"""Which steps an experiment takes, in which order; and the command line.

Names are imported on first use, so that ``import flows`` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.lazy import lazy_names

if TYPE_CHECKING:
    from flows.experiment_flow import experiment
    from flows.forking import fork_experiment
    from flows.planning import PlannedStage, plan_experiment
    from flows.result import ExperimentResult
    from flows.retesting import retest_experiment
    from flows.run import resume_experiment, run_experiment
    from flows.sweep_flow import sweep
    from flows.sweeping import run_sweep
    from flows.verifying import verify_run

__all__ = [
    "ExperimentResult",
    "PlannedStage",
    "experiment",
    "fork_experiment",
    "plan_experiment",
    "resume_experiment",
    "retest_experiment",
    "run_experiment",
    "run_sweep",
    "sweep",
    "verify_run",
]

_HOMES = {
    "ExperimentResult": "flows.result",
    "PlannedStage": "flows.planning",
    "experiment": "flows.experiment_flow",
    "fork_experiment": "flows.forking",
    "plan_experiment": "flows.planning",
    "resume_experiment": "flows.run",
    "retest_experiment": "flows.retesting",
    "run_experiment": "flows.run",
    "run_sweep": "flows.sweeping",
    "sweep": "flows.sweep_flow",
    "verify_run": "flows.verifying",
}


__getattr__ = lazy_names(__name__, _HOMES)
