"""Upper bounds on calls, rollouts and tokens of stages, before any stage runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ratchet.games import OPEN_SPIEL
from ratchet.parameters.options import ValidationParameters
from ratchet.parameters.text_trainers import count_rollouts as rollouts_of_an_iteration
from ratchet.parameters.text_trainers import count_tests
from ratchet.protocols.registry import playing_agents
from ratchet.scenarios.language_task.parameters import SMALL
from tasks.language.keys import LanguageArmKeys
from tasks.stages.files import TRAIN_DATASET
from tasks.text.keys import TextArmKeys

if TYPE_CHECKING:
    from ratchet.language_models.estimates import StageEstimate
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.scenarios.language_task.parameters import LanguageAgentParameters
    from ratchet.store.store import StageStore
    from tasks.stages.calls import StageCall
    from tasks.stages.families import AnyKeys


NOT_KNOWN = (
    "the trainer's number of calls is unknown: it overrides how rollouts are sampled without"
    " declaring the number of replies at each step. Set `responses_per_step` in its class, and"
    " `examples_per_rollout` if a rollout yields more than one example"
)


def estimate_stages(
    store: StageStore, keys: AnyKeys, settings: ExperimentSettings
) -> Mapping[tuple[str, int], StageEstimate]:
    """Estimate the maximum calls of each stage of an arm: stage and iteration → estimate.

    Empty for networks; excludes rollouts while the sizes of the datasets are unknown. Reads prices,
    workers and limits per minute from the settings.
    """
    if not isinstance(keys, TextArmKeys):
        return {}
    from ratchet.language_models.estimates import estimate_auxiliary_calls, estimate_experiment

    generators = keys.scenario.asked_for_data(keys.hyper_params)
    data = estimate_auxiliary_calls("build_scenario", generators, settings)
    estimates = {} if data is None else {(data.stage, 0): data}
    sizes = _sizes(store, keys)
    if sizes is None:
        return estimates
    experiment = estimate_experiment(
        keys.hyper_params, keys.text_class, *sizes, settings, base_dir=keys.base_path
    )
    last = keys.num_iterations
    return estimates | {
        (stage.stage, last if stage.stage == "test" else stage.iteration): stage
        for stage in experiment.stages
    }


def count_rollouts(store: StageStore, keys: AnyKeys) -> Mapping[tuple[str, int], int]:
    """Return the numbers of rollouts: stage and iteration → number; empty while unknown."""
    sizes = _sizes(store, keys)
    if sizes is None or not isinstance(keys, TextArmKeys):
        return {}
    num_train, num_test = sizes

    def sampled(params: HyperParameters) -> int:
        requested = params.rl.rollouts_per_iteration
        return rollouts_of_an_iteration(params.text_rl, requested, num_train)

    tested = count_tests(keys.hyper_params.text_rl, sampled(keys.hyper_params), num_test)
    rollouts = {("test", keys.num_iterations): tested}
    for iteration in range(keys.num_iterations):
        rollouts["sample_rollouts", iteration] = sampled(keys.parameters_in(iteration))
        rollouts["test_during_training", iteration] = tested
    return rollouts


def num_steps(keys: AnyKeys, call: StageCall) -> int:
    """Return the number of iterations or epochs of a stage; 0 for stages without."""
    if call.kind.span == "iterations":
        return call.iteration - call.start_iteration
    if call.stage == "imitate":
        return int(keys.hyper_params.imitation.num_iterations)
    is_pretraining = call.stage == "pretrain"
    return int(keys.hyper_params.solo_agent.num_epochs) if is_pretraining else 0


def plays(keys: AnyKeys, call: StageCall) -> bool:
    """Return whether a stage samples rollouts; a test reuses those of the last iteration if any."""
    return not (
        isinstance(keys, TextArmKeys)
        and call.stage == "test"
        and keys.tested_before(call.detail) is not None
    )


def _sizes(store: StageStore, keys: AnyKeys) -> tuple[int, int] | None:
    """Return the sizes of the built training and test set, or the configured sizes."""
    data = store.peek(keys.build_scenario().key)
    if data is not None:
        values = data.metrics[0].values
        names = (f"num_datapoints/{TRAIN_DATASET}", "num_datapoints/test")
        return (int(values[names[0]]), int(values[names[1]]))
    section = keys.hyper_params.to_dict().get(keys.hyper_params.scenario, {})
    sizes = section.get("num_train"), section.get("num_test")
    if None in sizes:
        return None
    validation: ValidationParameters = keys.hyper_params.validation
    return validation.sizes(int(sizes[0]), int(sizes[1]))


@dataclass(frozen=True)
class TokenUpperBound:
    """Upper bound on the rollouts of a language model in a stage.

    Attributes
    ----------
    answers
        Attempts at tasks.
    written
        Tokens of their completions.
    together
        Tokens of prompts and completions; None if only the model limits the prompts.
    """

    answers: int
    written: int
    together: int | None


def token_upper_bound(store: StageStore, keys: AnyKeys, call: StageCall) -> TokenUpperBound | None:
    """Return the bound for a language trainer's stage; None without rollouts or if unknown."""
    if not isinstance(keys, LanguageArmKeys):
        return None
    answers = _answers(store, keys, call)
    if not answers:
        return None
    params = _params(keys, call)
    bounds = [
        _of_agent(params, agent, answers)
        for agent in playing_agents(params, keys.base_path).values()
        if agent.is_model
    ]
    contexts = [together for _, together in bounds if together is not None]
    together = sum(contexts) if len(contexts) == len(bounds) else None
    return TokenUpperBound(answers, sum(written for written, _ in bounds), together)


def _params(keys: LanguageArmKeys, call: StageCall) -> HyperParameters:
    """Return the parameters of a stage: those of its phase, if it samples in one."""
    if call.kind.span == "iteration":
        return keys.parameters_in(call.iteration)
    phase = keys.phase_before(call.iteration) if call.kind.span == "iterations" else None
    return keys.hyper_params if phase is None else phase.hyper_params


def _of_agent(
    params: HyperParameters, agent: LanguageAgentParameters, answers: int
) -> tuple[int, int | None]:
    """Return an agent's tokens that are written, and those of prompts and completions."""
    written = answers * _turns(params) * agent.max_tokens
    limits = [params.language.max_sequence_length]
    if agent.model == SMALL:
        limits.append(agent.small_model.context_length)
    known_limits = [limit for limit in limits if limit is not None]
    together = answers * min(known_limits) if known_limits else None
    return min(written, together or written), together


def _answers(store: StageStore, keys: LanguageArmKeys, call: StageCall) -> int:
    params = _params(keys, call)
    language, grpo = params.language, params.grpo.settled
    if call.kind.span in ("iteration", "iterations"):
        resamples = grpo.max_resamples if grpo.dynamic_sampling else 0
        retries = language.failures.retries if language.failures.policy == "retry" else 0
        tasks = int(language.tasks_per_step) * (1 + resamples) * (1 + retries)
        draws: int = 1 + sum(grpo.redraws.values()) * _turns(params)
        return _iterations(keys, call) * tasks * int(language.group_size) * draws
    if call.stage in ("validate", "test"):
        dataset = "validation" if call.stage == "validate" else call.detail
        return _size(store, keys, dataset) * int(language.samples_per_test)
    return 0


def _iterations(keys: LanguageArmKeys, call: StageCall) -> int:
    """Return the number of iterations whose rollouts a stage samples."""
    if call.kind.span == "iteration":
        return 1
    start, stop = call.start_iteration, call.iteration
    if keys.plays_apart(start, stop):
        return 0
    is_behind = keys.hyper_params.language.mode == "one_step_behind"
    return (
        stop - start + (is_behind and start == 0)
    )  # its own first iteration, then always the next one


def _turns(params: HyperParameters) -> int:
    """Return the maximum replies per attempt; custom tasks may define an environment."""
    section = params.language_task
    named = section.environment.name if section.environment else None
    is_custom = ":" in params.dataset or params.dataset.startswith(OPEN_SPIEL)
    if named == "single_turn" or (named is None and not is_custom):
        return 1
    return int(section.max_turns)


def _size(store: StageStore, keys: LanguageArmKeys, dataset: str) -> int:
    """Return the number of tasks of a dataset, 0 if unknown."""
    built = store.peek(keys.build_scenario().key)
    if built is not None:
        return int(built.metrics[0].values.get(f"num_datapoints/{dataset}", 0))
    section, replaced = keys.hyper_params.language_task, keys.hyper_params.validation.replaces_test
    tested = section.num_validation if replaced else section.num_test
    return {"validation": section.num_validation, "test": tested}.get(dataset) or 0
