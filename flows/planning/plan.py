"""``plan_experiment``: the stages of a run with cache hits, misses and estimates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from flows.planning.estimates import (
    NOT_KNOWN,
    TokenUpperBound,
    count_rollouts,
    estimate_stages,
    num_steps,
    plays,
    token_upper_bound,
)
from flows.runs.resolve import ArmChanges, Parameters, ResolvedExperiment, resolve
from ratchet.errors import BudgetExceededError
from ratchet.parameters.settings import ExperimentSettings
from ratchet.protocols.registry import build_protocol_handler
from ratchet.store.store import StageStore
from ratchet.tracking.environment import RATCHET, changed_libraries
from ratchet.tracking.run_folder import MANIFEST_FILE, RunFolder
from tasks.language.keys import LanguageArmKeys
from tasks.stages.calls import StageCall
from tasks.stages.sequence import StoredStageLayout, flatten_steps

if TYPE_CHECKING:
    from ratchet.language_models.estimates import StageEstimate
    from ratchet.protocols.handler import ProtocolHandler
    from ratchet.store.manifest import Manifest
    from ratchet.store.stage_index import StageIndex


@dataclass(frozen=True)
class PlannedStage:
    """One stage of a plan.

    Attributes
    ----------
    stage
        Its name: "train", "pretrain-verifier" …
    iteration, start
        Iterations finished after and before it.
    hit, reason
        Whether it is cached, with the reason.
    seconds
        Its duration when it was computed; None if it is not cached.
    estimate
        Its maximum calls of services; None without calls or if unknown.
    num_rollouts
        Its number of chat models' rollouts, if known.
    tokens
        Upper bound on the tokens of a token-level language model.
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
    tokens: TokenUpperBound | None = None


def plan_experiment(
    hyper_params: Parameters,
    settings: ExperimentSettings | None = None,
    *,
    arms: ArmChanges | None = None,
    keep: bool = False,
) -> list[PlannedStage]:
    """Return every stage of an experiment, cached or not, with the reason.

    Parameters as for :func:`flows.run_experiment`; ``keep`` reuses, as on resume, stages of the run
    ``settings.run_id`` even if code changed.
    """
    return plan(resolve(hyper_params, settings, arms, keep=keep))


def plan(experiment: ResolvedExperiment) -> list[PlannedStage]:
    """Return every stage of a resolved experiment, cached or not, with the reason."""
    store, settings = experiment.store, experiment.settings
    layout = StoredStageLayout(store, settings)
    preferred: dict[str, set[str]] = {}
    if (experiment.run_path / MANIFEST_FILE).exists():
        for record in RunFolder(experiment.run_path).manifest.stages:
            preferred.setdefault(record.arm, set()).add(record.key)
    stages: list[PlannedStage] = []
    for keys in experiment.keys:
        estimates = estimate_stages(store, keys, settings)
        rollouts = count_rollouts(store, keys)
        for call in flatten_steps(keys.stages(layout)):
            stage = _planned(store, call, experiment.index, preferred.get(keys.arm, ()))
            if plays(keys, call):
                estimate = estimates.get((call.stage, call.iteration))
                num_rollouts = rollouts.get((call.stage, call.iteration), 0)
                tokens = token_upper_bound(store, keys, call)
                stage = replace(stage, estimate=estimate, num_rollouts=num_rollouts, tokens=tokens)
            stages.append(stage)
    return stages


def remaining_steps(experiment: ResolvedExperiment) -> Counter[str]:
    """Count the iterations, epochs and rollouts of stages that are not cached, by kind of stage."""
    store = experiment.store
    layout = StoredStageLayout(store, experiment.settings)
    steps: Counter[str] = Counter()
    for keys in experiment.keys:
        rollouts = count_rollouts(store, keys)
        for call in flatten_steps(keys.stages(layout)):
            if store.peek(call.key, allow_stale=True) is None:
                count = rollouts.get((call.stage, call.iteration), 0)
                played = count if plays(keys, call) else 0
                steps[call.stage] += num_steps(keys, call) or played
    return +steps


def remaining(plan: Iterable[PlannedStage]) -> StageEstimate | None:
    """Return the total estimate of missing stages, shared ones once; None without estimates."""
    to_do = {stage.key: stage.estimate for stage in plan if not stage.hit and stage.estimate}
    estimates = [estimate for estimate in to_do.values() if estimate is not None]
    if not estimates:
        return None
    from ratchet.language_models.estimates import ExperimentEstimate

    return replace(ExperimentEstimate(tuple(estimates)).total, stage="to do")


def check_plan(plan: Iterable[PlannedStage], budget: float | None, billed: float = 0.0) -> str:
    """Refuse a plan that may exceed the budget even if every reply is valid.

    Parameters
    ----------
    billed
        Upper bound on the amount billed to the run so far.

    Returns
    -------
    str
        A warning if retries of invalid replies may exceed the budget, at which the run stops;
        empty otherwise.
    """
    total = remaining(plan)
    if budget is None or total is None:
        return ""
    if not total.is_known:
        raise BudgetExceededError(
            f"budget: got {budget:.2f}, but {NOT_KNOWN}. Remove the budget to see"
            " the rest of the plan."
        )
    before = f" in addition to at most {billed:.2f} billed so far" if billed else ""
    if billed + total.cost > budget:
        raise BudgetExceededError(
            f"budget: missing stages may cost up to {total.cost:.2f} (with all retries of"
            f" invalid replies: {total.most_cost:.2f}){before}, expected at most {budget:.2f}."
            " Reduce the rollouts or iterations, choose a cheaper model, or raise the budget."
        )
    if total.unpriced_models:
        raise BudgetExceededError(
            f"budget: there is no price for {', '.join(total.unpriced_models)}, so that the cost"
            " is unknown. Add a table of prices with settings.prices."
        )
    if billed + total.most_cost <= budget:
        return ""
    return (
        f"The budget of {budget:.2f} may not be enough: up to {total.most_cost:.2f} could be"
        f" needed{before}. The run starts, and stops before any call that could exceed the budget;"
        " finished stages are stored, and a higher budget resumes it."
    )


def describe_rounds(experiment: ResolvedExperiment) -> list[str]:
    """Describe the rounds in which the agents of each arm's protocol act and decide."""
    lines: dict[str, None] = {}
    for keys in experiment.keys:
        if isinstance(keys, LanguageArmKeys):
            continue
        handler = build_protocol_handler(keys.hyper_params, base_dir=keys.base_path)
        if handler.verifier_names and handler.num_agents > 1:
            name = keys.hyper_params.interaction_protocol
            lines[f"Rounds of {name}: {_rounds(handler)}"] = None
    return list(lines)


def _rounds(handler: ProtocolHandler) -> str:
    """Describe the rounds in which agents act, and in which a verifier may decide."""
    numbers = range(handler.played_message_rounds)
    acts = handler.can_be_active_mask.any(-1).tolist()
    deciding = [handler.agent_index(name) for name in handler.verifier_names]
    first = handler.min_message_rounds - 1
    by_turn: dict[str, list[str]] = {}
    for number in numbers:
        turns = [
            f"{name} (may decide)" if index in deciding and number >= first else name
            for index, name in enumerate(handler.agent_names)
            if acts[number][index]
        ]
        by_turn.setdefault(", ".join(turns) or "no agent", []).append(str(number))
    text = "; ".join(f"{', '.join(rounds)}: {turn}" for turn, rounds in by_turn.items())
    decisive = [n for n in numbers if n >= first]
    start = next((n for n in decisive if any(acts[n][i] for i in deciding)), len(numbers))
    late = [
        name
        for index, name in enumerate(handler.agent_names)
        if not any(acts[n][index] for n in numbers[: start + 1])
    ]
    if not late:
        return f"{text}."
    return (
        f"{text}. A decision in round {start} ends an episode before any action of"
        f" {' and '.join(late)}; the protocol's min_message_rounds and"
        " protocol_common.verifier_first change that."
    )


def _planned(
    store: StageStore, call: StageCall, index: StageIndex, preferred: Collection[str]
) -> PlannedStage:
    manifest = store.peek(call.key)
    if manifest is not None:
        reason = _explain_hit(manifest, call)
    else:
        content = (call.stage, call.iteration, call.parameters, call.inputs)
        reason = index.explain_miss(*content, call.fingerprint, preferred)
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


def _explain_hit(manifest: Manifest, call: StageCall) -> str:
    """Describe a cached stage, and its differences to this version's code and libraries."""
    if call.key != call.computed_key:
        return "kept from an earlier run"
    notes = []
    if manifest.fingerprint.modules != call.fingerprint.modules:
        notes.append(f"made by {manifest.versions.get(RATCHET, 'an earlier version')}, equivalent")
    notes += [
        f"made with {name} {version}, here {installed}"
        for name, version, installed in changed_libraries(manifest.versions)
    ]
    return f"stored ({'; '.join(notes)})" if notes else "stored"
