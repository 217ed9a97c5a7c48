"""The steps of an experiment and their order, and the command line.

Names are imported on first use, so that ``import flows`` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.lazy import export_lazily

if TYPE_CHECKING:
    from flows.experiment_flow import experiment as experiment
    from flows.planning.plan import PlannedStage as PlannedStage
    from flows.planning.plan import plan_experiment as plan_experiment
    from flows.runs.derived_runs import fork_experiment as fork_experiment
    from flows.runs.derived_runs import retest_experiment as retest_experiment
    from flows.runs.result import ExperimentResult as ExperimentResult
    from flows.runs.run import resume_experiment as resume_experiment
    from flows.runs.run import run_experiment as run_experiment
    from flows.runs.verify import verify_run as verify_run
    from flows.runs.without_prefect import run_without_prefect as run_without_prefect
    from flows.sweep_flow import sweep as sweep
    from flows.sweeps.crossplay import play_runs as play_runs
    from flows.sweeps.exploit import exploit_run as exploit_run
    from flows.sweeps.running import run_sweep as run_sweep

export_lazily(__name__)
