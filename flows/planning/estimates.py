"""What is still to do, and what services will be asked for at most, before any stage is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ratchet.errors import BudgetExceededError
from ratchet.parameters.text_trainers import count_rollouts as rollouts_of_an_iteration
from ratchet.parameters.text_trainers import count_tests
from tasks.stages.datasets import TRAIN_DATASET
from tasks.stages.sequence import StoredCourse, in_order
from tasks.text.keys import TextArmKeys

if TYPE_CHECKING:
    from flows.planning.plan import PlannedStage
    from flows.runs.resolving import ResolvedExperiment
    from ratchet.language_models.estimates import StageEstimate
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.store.store import StageStore
    from tasks.stages.calls import StageCall
    from tasks.stages.families import AnyKeys


NOT_KNOWN = (
    "it is not known what the trainer asks for: it samples rollouts in a way of its own and does"
    " not say how many replies at each step. Write `responses_per_step` into its class, and"
    " `examples_per_rollout` if they make more than one example"
)


def estimate_stages(
    store: StageStore, keys: AnyKeys, settings: ExperimentSettings
) -> Mapping[tuple[str, int], StageEstimate]:
    """Estimate what each stage of an arm asks for at most: stage and iteration → estimate.

    Nothing of playing while the sizes of the datasets, which lie in the store, are unknown, and for
    networks. Of the settings prices, workers and limits per minute are read.
    """
    if not isinstance(keys, TextArmKeys):
        return {}
    from ratchet.language_models.estimates import estimate_asked, estimate_experiment

    asked = keys.scenario.asked_for_data(keys.hyper_params)
    data = estimate_asked("build_scenario", asked, settings)
    estimates = {} if data is None else {(data.stage, 0): data}
    sizes = _sizes(store, keys)
    if sizes is None:
        return estimates
    found = estimate_experiment(keys.hyper_params, keys.text_class, *sizes, settings)
    last = keys.num_iterations
    return estimates | {
        (stage.stage, last if stage.stage == "test" else stage.iteration): stage
        for stage in found.stages
    }


def count_rollouts(store: StageStore, keys: AnyKeys) -> Mapping[str, int]:
    """Return the number of rollouts that stages of each kind play; empty while unknown."""
    sizes = _sizes(store, keys)
    if sizes is None or not isinstance(keys, TextArmKeys):
        return {}
    num_train, num_test = sizes
    text_rl = keys.hyper_params.text_rl
    asked = keys.hyper_params.rl.rollouts_per_iteration
    per_iteration = rollouts_of_an_iteration(text_rl, asked, num_train)
    tested = count_tests(text_rl, per_iteration, num_test)
    return {"sample_rollouts": per_iteration, "test_during_training": tested, "test": tested}


def plays(keys: AnyKeys, call: StageCall) -> bool:
    """Return whether a stage plays anew what it tests; not if the last iteration has done so."""
    return not (
        isinstance(keys, TextArmKeys)
        and call.stage == "test"
        and keys.tested_before(call.detail) is not None
    )


def remaining_iterations(experiment: ResolvedExperiment) -> int:
    """Return the number of iterations, epochs and rollouts of stages that are not stored yet."""
    store = experiment.store
    course = StoredCourse(store, experiment.settings)
    total = 0
    for keys in experiment.keys:
        rollouts = count_rollouts(store, keys)
        for call in in_order(keys.stages(course)):
            if store.peek(call.key, lately=True) is not None:
                continue
            if call.stage == "train":
                total += call.iteration - call.start_iteration
            elif call.stage == "pretrain":
                total += int(keys.hyper_params.solo_agent.num_epochs)
            elif call.stage == "imitate":
                total += int(keys.hyper_params.imitation.num_iterations)
            elif plays(keys, call):
                total += rollouts.get(call.stage, 0)
    return total


def remaining(plan: Iterable[PlannedStage]) -> StageEstimate | None:
    """Return the sum of what is to do; what arms share counts once. None without estimates."""
    to_do = {stage.key: stage.estimate for stage in plan if not stage.hit and stage.estimate}
    estimates = [estimate for estimate in to_do.values() if estimate is not None]
    if not estimates:
        return None
    from ratchet.language_models.estimates import ExperimentEstimate

    return replace(ExperimentEstimate(tuple(estimates)).total, stage="to do")


def check_plan(plan: Iterable[PlannedStage], budget: float | None, billed: float = 0.0) -> str:
    """Refuse a plan that may cost more than the budget even if every reply can be read.

    Parameters
    ----------
    billed
        What the run was billed so far, at most.

    Returns
    -------
    str
        That the run may stop at its budget, where it may once replies are asked for again: it
        makes no call that could go over it. Empty where it may not.

    Raises
    ------
    BudgetExceededError
        With the estimate, the models that have no price, or that the trainer doesn't say what it
        asks for.
    """
    total = remaining(plan)
    if budget is None or total is None:
        return ""
    if not total.is_known:
        raise BudgetExceededError(
            f"budget: got {budget:.2f}, but {NOT_KNOWN}. Without a budget the plan says the rest."
        )
    before = f" on top of {billed:.2f} that the run was billed at most" if billed else ""
    if billed + total.cost > budget:
        raise BudgetExceededError(
            f"budget: what is to do may cost up to {total.cost:.2f} (with all retries of replies"
            f" that can't be read: {total.most_cost:.2f}){before}, expected at most {budget:.2f}."
            " Play fewer rollouts or iterations, choose a cheaper model, or raise the budget."
        )
    if total.unpriced_models:
        raise BudgetExceededError(
            f"budget: there is no price for {', '.join(total.unpriced_models)}, so that nothing"
            " can be said about the cost. Give a table of prices with settings.prices."
        )
    if billed + total.most_cost <= budget:
        return ""
    return (
        f"The budget of {budget:.2f} may not be enough: up to {total.most_cost:.2f} could be"
        f" needed{before}. The run begins, and stops before what could go over its budget; what is"
        " finished is kept, and a higher one goes on."
    )


def _sizes(store: StageStore, keys: AnyKeys) -> tuple[int, int] | None:
    """Return the sizes of training and test set, as they are, or as the parameters ask for them."""
    data = store.peek(keys.build_scenario().key)
    if data is not None:
        values = data.metrics[0].values
        names = (f"num_datapoints/{TRAIN_DATASET}", "num_datapoints/test")
        return (int(values[names[0]]), int(values[names[1]]))
    section = keys.hyper_params.to_dict().get(keys.hyper_params.scenario, {})
    wanted = section.get("num_train"), section.get("num_test")
    return None if None in wanted else (int(wanted[0]), int(wanted[1]))
