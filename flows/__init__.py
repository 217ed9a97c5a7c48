"""Which steps an experiment takes, in which order; and the command line.

Names are imported on first use, so that ``import flows`` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.lazy import lazy_names

if TYPE_CHECKING:
    from flows.experiment_flow import experiment
    from flows.planning.plan import PlannedStage, plan_experiment
    from flows.runs.forking import fork_experiment
    from flows.runs.result import ExperimentResult
    from flows.runs.retesting import retest_experiment
    from flows.runs.running import resume_experiment, run_experiment
    from flows.runs.verifying import verify_run
    from flows.sweep_flow import sweep
    from flows.sweeps.running import run_sweep

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
    "ExperimentResult": "flows.runs.result",
    "PlannedStage": "flows.planning.plan",
    "experiment": "flows.experiment_flow",
    "fork_experiment": "flows.runs.forking",
    "plan_experiment": "flows.planning.plan",
    "resume_experiment": "flows.runs.running",
    "retest_experiment": "flows.runs.retesting",
    "run_experiment": "flows.runs.running",
    "run_sweep": "flows.sweeps.running",
    "sweep": "flows.sweep_flow",
    "verify_run": "flows.runs.verifying",
}


__getattr__ = lazy_names(__name__, _HOMES)
