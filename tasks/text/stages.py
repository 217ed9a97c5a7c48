"""What does each stage of an arm of chat models, by the stage's name. Imports Prefect."""

from __future__ import annotations

from typing import Any

from tasks.build_scenario import build_scenario
from tasks.stages.decorator import Stage
from tasks.text.fine_tuning import await_fine_tune_jobs, create_fine_tune_jobs
from tasks.text.initial_state import initial_state
from tasks.text.playing import sample_rollouts, test, test_during_training
from tasks.text.statistics import log_stats

STAGES: dict[str, Stage[Any]] = {
    "build_scenario": build_scenario,
    "initial_state": initial_state,
    "sample_rollouts": sample_rollouts,
    "log_stats": log_stats,
    "test_during_training": test_during_training,
    "create_fine_tune_jobs": create_fine_tune_jobs,
    "await_fine_tune_jobs": await_fine_tune_jobs,
    "test": test,
}
