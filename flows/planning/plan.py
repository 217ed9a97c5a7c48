"""``plan_experiment``: what a run would do, stage by stage, without doing any of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.planning.estimates import AFTER_TRAINING, count_rollouts, estimate_stages
from flows.runs.identity import ArmChanges, absolute_settings, read_arms, with_earlier_agents
from flows.runs.pinning import Fork, arm_keys, recorded_stages
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.settings import ExperimentSettings
from ratchet.store.misses import explain_miss
from ratchet.store.store import StageStore
from tasks.stages.calls import TEST_DATASET, StageCall
from tasks.stages.chain import Cut, find_chain
from tasks.stages.datasets import tested_datasets
from tasks.stages.keys import BaseKeys
from tasks.tensordict.keys import ArmKeys
from tasks.text.keys import TextArmKeys

if TYPE_CHECKING:
    from ratchet.language_models.estimates import StageEstimate


@dataclass(frozen=True)
class PlannedStage:
    """One stage of a plan.

    Attributes
    ----------
    arm, stage
        Whose, and its name: "train", "pretrain-verifier" …
    iteration, start
        Iterations done after and before it.
    hit
        Whether it is in the store.
    reason
        Why, or why not.
    key
        Its key.
    seconds
        How long it took when it was made; None if it was not.
    estimate
        What it asks of services at most; None if it asks nothing, or that is not known.
    num_rollouts
        How many rollouts of chat models it plays, where that is known.
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


def plan_experiment(
    hyper_params: HyperParameters | Mapping[str, Any],
    settings: ExperimentSettings | None = None,
    *,
    arms: ArmChanges | None = None,
    keep: bool = False,
) -> list[PlannedStage]:
    """Say for every stage of an experiment whether it is done, and why not.

    Parameters
    ----------
    hyper_params, settings, arms
        As :func:`flows.run_experiment`.
    keep
        As on resume: keep what the run ``settings.run_id`` has finished with other code.
    """
    chosen = absolute_settings(settings or ExperimentSettings())
    if not isinstance(hyper_params, HyperParameters):
        hyper_params = HyperParameters.from_dict(hyper_params, chosen.base_dir)
    store = StageStore(chosen.store_url)
    fork = Fork.read(Path(chosen.runs) / chosen.run_id) if chosen.run_id else None
    records = recorded_stages(chosen) if keep else None
    plan: list[PlannedStage] = []
    all_arms = with_earlier_agents(read_arms(hyper_params, arms, chosen.base_dir), chosen)
    for keys in arm_keys(all_arms, chosen, store, fork, records):
        if isinstance(keys, TextArmKeys):
            plan.extend(_plan_text_arm(store, keys, chosen))
        else:
            plan.extend(_plan_tensor_arm(store, keys, chosen))
    return plan


def _plan_text_arm(
    store: StageStore, keys: TextArmKeys, settings: ExperimentSettings
) -> Iterator[PlannedStage]:
    estimates = estimate_stages(store, keys, settings)
    rollouts = count_rollouts(store, keys)
    for call in keys.stages(_tested(store, keys)):
        if call.stage == "test" and keys.tested_before(call.detail) is not None:
            yield _planned(store, call)
            continue
        iteration = AFTER_TRAINING if call.stage == "test" else call.iteration
        yield replace(
            _planned(store, call),
            estimate=estimates.get((call.stage, iteration)),
            num_rollouts=rollouts.get(call.stage, 0),
        )


def _plan_tensor_arm(
    store: StageStore, keys: ArmKeys, settings: ExperimentSettings
) -> Iterator[PlannedStage]:
    yield _planned(store, keys.build_scenario())
    if not keys.is_staged:
        yield _planned(store, keys.whole())
        return
    if not keys.only_tests:
        yield from _plan_training(store, keys, settings)
    for iteration in keys.tested_iterations:
        for dataset in _tested(store, keys):
            yield _planned(store, keys.test(dataset, iteration))


def _plan_training(
    store: StageStore, keys: ArmKeys, settings: ExperimentSettings
) -> Iterator[PlannedStage]:
    yield _planned(store, keys.initial_state())
    for agent in keys.pretrained_agents:
        yield _planned(store, keys.pretrain(agent))
    if keys.pretrained_agents:
        yield _planned(store, keys.pretrained_state())
    position, last, cut = 0, keys.num_iterations, Cut.of(settings)
    reached = [link.iteration for link in find_chain(store, keys, last)]
    while True:
        if keys.samples_rollouts and cut.samples_at(position, last):
            yield _planned(store, keys.rollouts(position))
        if position >= last:
            return
        stop = reached.pop(0) if reached else cut.next_stop(position, last)
        yield _planned(store, keys.train(position, stop))
        position = stop


def _tested(store: StageStore, keys: BaseKeys) -> list[str]:
    """List the datasets that are tested on; the usual one if they are not made yet."""
    data = store.peek(keys.build_scenario().key)
    return tested_datasets(data) if data is not None else [TEST_DATASET]


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
