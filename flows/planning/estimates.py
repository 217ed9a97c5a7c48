"""What the stages of an arm of chat models will ask of services at most, before any is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ratchet.errors import BudgetExceededError
from tasks.stages.datasets import TRAIN_DATASET

if TYPE_CHECKING:
    from flows.planning.plan import PlannedStage
    from ratchet.language_models.estimates import StageEstimate
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.store.store import StageStore
    from tasks.text.keys import TextArmKeys

AFTER_TRAINING = -1
"""The iteration of the last test in an estimate."""


def estimate_stages(
    store: StageStore, keys: TextArmKeys, settings: ExperimentSettings
) -> Mapping[tuple[str, int], StageEstimate]:
    """ExperimentEstimate what each stage of an arm asks for at most.

    Parameters
    ----------
    store
        Where the datasets may lie, whose sizes are asked for.
    keys
        The arm's.
    settings
        Of these: prices, workers and limits per minute.

    Returns
    -------
    Mapping
        Stage and iteration → estimate; empty while the sizes of the datasets are unknown.
    """
    from trainers.text.staged import StagedTextTrainer

    sizes, trainer = _sizes(store, keys), keys.trainer_class
    if sizes is None or not issubclass(trainer, StagedTextTrainer):
        return {}
    from ratchet.language_models.estimates import estimate_experiment

    estimate = estimate_experiment(keys.hyper_params, trainer, *sizes, settings)
    return {(stage.stage, stage.iteration): stage for stage in estimate.stages}


def count_rollouts(store: StageStore, keys: TextArmKeys) -> Mapping[str, int]:
    """Count the rollouts that the stages of each kind play; empty while sizes are unknown."""
    sizes = _sizes(store, keys)
    if sizes is None:
        return {}
    num_train, num_test = sizes
    per_iteration = keys.hyper_params.rl.rollouts_per_iteration or num_train
    whole = keys.hyper_params.text_rl.test_on_whole_dataset
    tested = num_test if whole else min(per_iteration, num_test)
    return {"sample_rollouts": per_iteration, "test_during_training": tested, "test": tested}


def remaining(plan: Iterable[PlannedStage]) -> StageEstimate | None:
    """Sum the estimates of what is to do; what arms share counts once. None without any."""
    to_do = {stage.key: stage.estimate for stage in plan if not stage.hit and stage.estimate}
    estimates = [estimate for estimate in to_do.values() if estimate is not None]
    if not estimates:
        return None
    from ratchet.language_models.estimates import ExperimentEstimate

    return replace(ExperimentEstimate(tuple(estimates)).total, stage="to do")


def check_plan(plan: Iterable[PlannedStage], budget: float | None) -> None:
    """Refuse a plan that may cost more than the budget.

    Raises
    ------
    BudgetExceededError
        With the estimate, or the models that have no price.
    """
    total = remaining(plan)
    if budget is None or total is None:
        return
    if total.cost > budget:
        raise BudgetExceededError(
            f"budget: what is to do may cost up to {total.cost:.2f}, expected at most {budget:.2f}."
            " Play fewer rollouts or iterations, choose a cheaper model, or raise the budget."
        )
    if total.unpriced_models:
        raise BudgetExceededError(
            f"budget: there is no price for {', '.join(total.unpriced_models)}, so that nothing"
            " can be said about the cost. Give a table of prices with settings.prices."
        )


def _sizes(store: StageStore, keys: TextArmKeys) -> tuple[int, int] | None:
    """Return the sizes of training and test set, as they are, or as the parameters ask for them."""
    data = store.peek(keys.build_scenario().key)
    if data is not None:
        values = data.metrics[0].values
        names = (f"num_datapoints/{TRAIN_DATASET}", "num_datapoints/test")
        return (int(values[names[0]]), int(values[names[1]]))
    section = keys.hyper_params.to_dict().get(keys.hyper_params.scenario, {})
    wanted = section.get("num_train"), section.get("num_test")
    return None if None in wanted else (int(wanted[0]), int(wanted[1]))
