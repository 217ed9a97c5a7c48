"""``ratchet plan``: which stages an experiment has, which are stored, and why not the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.messages import print_plain, print_table
from flows.cli.running import ExperimentPath, Overrides

if TYPE_CHECKING:
    from flows.planning import PlannedStage


def plan(
    file: ExperimentPath,
    overrides: Overrides = None,
    keys: Annotated[bool, typer.Option("--keys", help="Show the stages' keys too.")] = False,
) -> None:
    """Say which stages `run` would find in the store and which it would make, and why."""
    from flows.identity import MAIN_ARM, stable_run_id
    from ratchet.parameters.loading import load_experiment

    experiment = load_experiment(file, overrides or [])
    settings = experiment.settings
    arms = {MAIN_ARM: experiment.hyper_params, **experiment.arms}
    run_id = settings.run_id or stable_run_id(experiment.name, arms)

    from flows.planning import plan_experiment

    stages = plan_experiment(
        experiment.hyper_params,
        settings.model_copy(update={"run_id": run_id}),
        arms=experiment.arms,
    )
    columns = ("arm", "stage", "iterations", "", "why", *(["key"] if keys else []))
    rows = [(*_row(stage), *([stage.key] if keys else [])) for stage in stages]
    print_table(f"Plan of {run_id}", columns, rows)
    print_plain(_summary(stages))


def _row(stage: PlannedStage) -> tuple[str, str, str, str, str]:
    span = f"{stage.start} → {stage.iteration}" if stage.stage == "train" else ""
    return stage.arm, stage.stage, span, "stored" if stage.hit else "to do", stage.reason


def _summary(stages: list[PlannedStage]) -> str:
    from flows.cli.progress import format_seconds

    stored = [stage for stage in stages if stage.hit]
    saved = sum({stage.key: stage.seconds or 0.0 for stage in stored}.values())  # arms share
    text = f"{len(stages)} stages: {len(stored)} stored, {len(stages) - len(stored)} to do."
    return f"{text} What is stored took {format_seconds(saved)}." if stored else text
