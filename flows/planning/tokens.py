"""How much a language model plays in a stage at most: known before any of it is played."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tasks.language.keys import LanguageArmKeys

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.store.store import StageStore
    from tasks.stages.calls import StageCall
    from tasks.stages.families import AnyKeys

SMALL = "small"


@dataclass(frozen=True)
class TokensAtMost:
    """What a stage plays at most.

    Attributes
    ----------
    answers
        Attempts at tasks.
    written
        Tokens of their replies.
    together
        Tokens of prompts and replies; None where nothing bounds a prompt but the model.
    """

    answers: int
    written: int
    together: int | None


def tokens_at_most(store: StageStore, keys: AnyKeys, call: StageCall) -> TokensAtMost | None:
    """Return what a stage of a language trainer plays; None if nothing, or it is not known."""
    if not isinstance(keys, LanguageArmKeys):
        return None
    answers = _answers(store, keys, call)
    if not answers:
        return None
    params = keys.hyper_params
    (agent,) = (params.agents[name] for name in params.agents)
    written = answers * _turns(params) * agent.max_tokens
    limits = [params.language.max_sequence_length]
    if agent.model == SMALL:
        limits.append(agent.small_model.context_length)
    known = [limit for limit in limits if limit is not None]
    together = answers * min(known) if known else None
    return TokensAtMost(answers, min(written, together or written), together)


def _answers(store: StageStore, keys: LanguageArmKeys, call: StageCall) -> int:
    language = keys.hyper_params.language
    if call.stage in ("rollouts", "train"):
        tasks = int(language.tasks_per_step) * _tries(keys.hyper_params)
        return _iterations(keys, call) * tasks * int(language.group_size)
    if call.stage in ("validate", "test"):
        dataset = "validation" if call.stage == "validate" else call.detail
        return _size(store, keys, dataset) * int(language.samples_per_test)
    return 0


def _iterations(keys: LanguageArmKeys, call: StageCall) -> int:
    """Return how many iterations' rollouts a stage plays."""
    if call.stage == "rollouts":
        return 1
    start, stop = call.start_iteration, call.iteration
    if keys.plays_apart(start, stop):
        return 0
    is_behind = keys.hyper_params.language.mode == "one_step_behind"
    return stop - start + (is_behind and start == 0)  # the first ones, and then always the next


def _tries(params: HyperParameters) -> int:
    """Return how often tasks are played for an iteration at most, and each that fails."""
    failures, grpo = params.language.failures, params.grpo.settled
    again = grpo.max_resamples if grpo.dynamic_sampling else 0
    return (1 + again) * (1 + (failures.retries if failures.policy == "retry" else 0))


def _turns(params: HyperParameters) -> int:
    """Return the most replies of an attempt; tasks of one's own may bring an environment."""
    section = params.language_task
    named = section.environment.name if section.environment else None
    brings = ":" in params.dataset  # a class, or an environment of a package
    if named == "single_turn" or (named is None and not brings):
        return 1
    return int(section.max_turns)


def _size(store: StageStore, keys: LanguageArmKeys, dataset: str) -> int:
    """Return the number of tasks of a dataset, 0 if that isn't known yet."""
    built = store.peek(keys.build_scenario().key)
    if built is not None:
        return int(built.metrics[0].values.get(f"num_datapoints/{dataset}", 0))
    section = keys.hyper_params.language_task
    return {"validation": section.num_validation, "test": section.num_test}.get(dataset) or 0
