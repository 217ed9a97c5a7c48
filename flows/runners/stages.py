"""Stages of a run's arms on a runner: what is asked, how it is worked, and what is told of it.

Only stages that compute: those of chat models wait for services, share what the run may spend, and
stay in the flow's process, as do language models, whose services it has started. They play beside
the others all the same.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.errors import StageKeyError, StoreError
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.settings import ExperimentSettings
from ratchet.store.fingerprint import Fingerprint
from ratchet.store.store import Damage, StageStore
from ratchet.tracking.logs import kept_log
from tasks.language.session import LanguageArmSession
from tasks.stages.calls import StageCall
from tasks.stages.decorator import StageOutcome, make_stage
from tasks.stages.families import make_keys, stage_functions
from tasks.tensordict.keys import ArmKeys
from tasks.tensordict.session import ArmSession
from trainers.companion import Answer
from trainers.progress import IterationContext, progress_place

if TYPE_CHECKING:
    from flows.runners.base import Request, Runner
    from ratchet.store.manifest import Manifest
    from tasks.stages.session import BaseSession

_MOST_SESSIONS = 4
_sessions: dict[str, ArmSession] = {}
"""Those of this worker's last arms, whose components are built."""


class StagesElsewhere:
    """Has a runner make the stages of arms; the arms' sessions in this process ask it."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._free = asyncio.Semaphore(runner.slots)

    def take(self, session: BaseSession) -> None:
        """Have the stages of an arm made by the runner, if they can be."""
        if not isinstance(session, ArmSession) or isinstance(session, LanguageArmSession):
            return
        if not session.keys.only_tests:  # its states lie in an earlier run
            session.make_elsewhere = lambda call, force: self._make(session, call, force)

    async def _make(self, session: ArmSession, call: StageCall, force: bool) -> StageOutcome:
        async with self._free:
            with (
                progress_place(call.arm),
                IterationContext(steps := _num_steps(session, call)) as progress,
                session.observer.under_way(call),
            ):
                progress.set_description(call.title)
                answer = await self._runner.submit(_request(session, call, force))
                manifest = await asyncio.to_thread(_find_made, session, call)
                if manifest.metrics:
                    progress.set_postfix(manifest.metrics[-1].values)
                progress.step(steps)
        for damage in answer["damages"]:
            _tell_of_damage(session.store, damage)
        return StageOutcome(call, manifest, answer["hit"], answer["reason"])


def _num_steps(session: ArmSession, call: StageCall) -> int:
    """Return how many iterations or epochs a stage has, as a run's progress counts them."""
    if call.stage == "train":
        return call.iteration - call.start_iteration
    if call.stage == "imitate":
        return int(session.keys.hyper_params.imitation.num_iterations)
    is_pretraining = call.stage == "pretrain"
    return int(session.keys.hyper_params.solo_agent.num_epochs) if is_pretraining else 0


def _find_made(session: ArmSession, call: StageCall) -> Manifest:
    manifest = session.store.find(call.key, again=True)
    if manifest is None:
        raise StoreError(
            f"{call.label}: a worker made stage {call.key}, and it is not in"
            f" {session.settings.store_url}. Workers must have the same store at the same place:"
            " choose a shared folder or a URL with settings.store."
        )
    return manifest


def _request(session: ArmSession, call: StageCall, force: bool) -> Request:
    keys = session.keys
    return {
        "work": "stage",
        "call": asdict(call),
        "force": force,
        "arm": {
            "name": keys.arm,
            "hyper_params": keys.hyper_params.to_dict(),
            "pins": [[*place, key] for place, key in keys.pins.items()],
            "checkpoints": keys.checkpoints,
            "imitated_rollouts": list(keys.imitated_rollouts),
            "settings": session.settings.to_dict(),
        },
    }


def _tell_of_damage(store: StageStore, damage: dict[str, Any]) -> None:
    if store.on_damage is not None:
        store.on_damage(Damage(**damage))


def work_stage(request: Answer) -> Answer:
    """Make a stage in the worker; the answer says how, and its result is in the store."""
    call = _call(request["call"])
    session = _session(request["arm"])
    changed = session.keys.code_changes(call)
    if changed:
        raise StageKeyError(
            f"{call.label}: this worker has other code than the run: {', '.join(changed)}. Install"
            " the same there, and start its workers again."
        )
    damages: list[dict[str, Any]] = []
    session.store.on_damage = lambda damage: damages.append(asdict(damage))
    stage = stage_functions(session.keys)[call.stage]
    with _logged(session.settings):
        outcome = make_stage(stage, call, session, force=request["force"])
    return {"hit": outcome.hit, "reason": outcome.reason, "damages": damages}


def _logged(settings: ExperimentSettings) -> AbstractContextManager[None]:
    """Keep the log in the run's folder, where this machine has it."""
    folder = Path(settings.runs) / str(settings.run_id)
    return kept_log(folder, str(settings.run_id)) if folder.is_dir() else nullcontext()


def _call(data: dict[str, Any]) -> StageCall:
    call = StageCall(**data)
    return replace(call, fingerprint=Fingerprint(**data["fingerprint"]))


def _session(arm: dict[str, Any]) -> ArmSession:
    """Return the session of an arm; one that was built for an earlier stage where there is one."""
    known = json.dumps(arm, sort_keys=True)
    session = _sessions.pop(known, None) or _new_session(arm)
    _sessions[known] = session
    if len(_sessions) > _MOST_SESSIONS:
        _sessions.pop(next(iter(_sessions))).close()
    return session


def _new_session(arm: dict[str, Any]) -> ArmSession:
    settings = ExperimentSettings.from_dict(arm["settings"])
    hyper_params = HyperParameters.from_dict(arm["hyper_params"], settings.base_dir)
    keys = make_keys(
        arm["name"], hyper_params, base_dir=settings.base_dir, checkpoints=arm["checkpoints"]
    )
    assert isinstance(keys, ArmKeys)  # as that of whoever asks
    keys.pins = {(name, iteration): key for name, iteration, key in arm["pins"]}
    keys.imitated_rollouts = tuple(arm["imitated_rollouts"])
    store = StageStore(settings.store_url, lease_seconds=settings.lease_seconds)
    return ArmSession(keys, settings, store)
