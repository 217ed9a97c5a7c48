"""``plan_experiment``: what a run would do, stage by stage, without doing any of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from flows.planning.estimates import count_rollouts, estimate_stages, plays
from flows.planning.tokens import TokensAtMost, tokens_at_most
from flows.runs.resolving import ArmChanges, ResolvedExperiment, resolve
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.settings import ExperimentSettings
from ratchet.protocols.registry import build_protocol_handler
from ratchet.store.misses import explain_miss
from ratchet.store.store import StageStore
from tasks.language.keys import LanguageArmKeys
from tasks.stages.calls import StageCall
from tasks.stages.sequence import StoredCourse, in_order

if TYPE_CHECKING:
    from ratchet.language_models.estimates import StageEstimate
    from ratchet.protocols.handler import ProtocolHandler


@dataclass(frozen=True)
class PlannedStage:
    """One stage of a plan.

    Attributes
    ----------
    stage
        Its name: "train", "pretrain-verifier" …
    iteration, start
        Iterations done after and before it.
    hit, reason
        Whether it is in the store, and why, or why not.
    seconds
        How long it took when it was made; None if it was not.
    estimate
        What it asks of services at most; None if it asks nothing, or that is not known.
    num_rollouts
        The number of rollouts of chat models that it plays, where that is known.
    tokens
        What a language model that learns from its tokens plays in it at most.
    """

    arm: str
    stage: str
    iteration: int
    start: int
    hit: bool
    reason: str
    key: str
    seconds: float | None = None
    estimate: StageEstimate | None = None
    num_rollouts: int = 0
    tokens: TokensAtMost | None = None


def plan_experiment(
    hyper_params: HyperParameters | Mapping[str, Any],
    settings: ExperimentSettings | None = None,
    *,
    arms: ArmChanges | None = None,
    keep: bool = False,
) -> list[PlannedStage]:
    """Return for every stage of an experiment whether it is done, and why not.

    Parameters as for :func:`flows.run_experiment`; ``keep``, as on resume, what the run
    ``settings.run_id`` has finished with other code.
    """
    return plan(resolve(hyper_params, settings, arms, keep=keep))


def plan(experiment: ResolvedExperiment) -> list[PlannedStage]:
    """Return for every stage of a resolved experiment whether it is done, and why not."""
    store, settings = experiment.store, experiment.settings
    course = StoredCourse(store, settings)
    stages: list[PlannedStage] = []
    for keys in experiment.keys:
        estimates = estimate_stages(store, keys, settings)
        rollouts = count_rollouts(store, keys)
        for call in in_order(keys.stages(course)):
            stage = _planned(store, call)
            if plays(keys, call):
                estimate = estimates.get((call.stage, call.iteration))
                num_rollouts = rollouts.get(call.stage, 0)
                tokens = tokens_at_most(store, keys, call)
                stage = replace(stage, estimate=estimate, num_rollouts=num_rollouts, tokens=tokens)
            stages.append(stage)
    return stages


def describe_rounds(experiment: ResolvedExperiment) -> list[str]:
    """Describe in which rounds the agents of each arm's protocol act and decide."""
    found: dict[str, None] = {}
    for keys in experiment.keys:
        if isinstance(keys, LanguageArmKeys):
            continue
        handler = build_protocol_handler(keys.hyper_params, base_dir=keys.base_path)
        if handler.verifier_names and handler.num_agents > 1:
            name = keys.hyper_params.interaction_protocol
            found[f"Rounds of {name}: {_rounds(handler)}"] = None
    return list(found)


def _rounds(handler: ProtocolHandler) -> str:
    """Write which agents act in which rounds, and where a verifier may decide."""
    numbers = range(handler.played_message_rounds)
    acts = handler.can_be_active_mask.any(-1).tolist()
    deciding = [handler.agent_index(name) for name in handler.verifier_names]
    by_turn: dict[str, list[str]] = {}
    for number in numbers:
        turns = [
            f"{name} (may decide)" if _may_decide(handler, number, place, deciding) else name
            for place, name in enumerate(handler.agent_names)
            if acts[number][place]
        ]
        by_turn.setdefault(", ".join(turns) or "no agent", []).append(str(number))
    text = "; ".join(f"{', '.join(rounds)}: {turn}" for turn, rounds in by_turn.items())
    decided = [n for n in numbers if n >= handler.min_message_rounds - 1]
    start = next((n for n in decided if any(acts[n][p] for p in deciding)), len(numbers))
    late = [
        name
        for place, name in enumerate(handler.agent_names)
        if not any(acts[n][place] for n in numbers[: start + 1])
    ]
    if not late:
        return f"{text}."
    return (
        f"{text}. A decision in round {start} ends an episode before {' and '.join(late)} act;"
        " the protocol's min_message_rounds and protocol_common.verifier_first change that."
    )


def _may_decide(handler: ProtocolHandler, round: int, place: int, deciding: list[int]) -> bool:
    return place in deciding and round >= handler.min_message_rounds - 1


def _planned(store: StageStore, call: StageCall) -> PlannedStage:
    manifest = store.peek(call.key)
    if manifest is not None:
        reason = "kept from an earlier run" if call.key != call.computed_key else "stored"
    else:
        reason = explain_miss(
            store, call.stage, call.iteration, call.parameters, call.inputs, call.fingerprint
        )
    return PlannedStage(
        arm=call.arm,
        stage=call.name,
        iteration=call.iteration,
        start=call.start_iteration,
        hit=manifest is not None,
        reason=reason,
        key=call.key,
        seconds=manifest.seconds if manifest is not None else None,
    )
