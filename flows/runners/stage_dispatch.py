"""Dispatch of a run's stages to a runner: requests, execution, and progress reports.

Only compute-bound stages are dispatched. Stages of chat models wait for services and share the
run's budget, and language models use services started by the flow's process; both stay in that
process and run concurrently with the dispatched ones.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.planning.estimates import num_steps
from ratchet.errors import StageKeyError, StoreError
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.settings import ExperimentSettings
from ratchet.store.fingerprint import Fingerprint
from ratchet.store.store import Damage, StageStore
from ratchet.tracking.logs import kept_log
from ratchet.tracking.stage_kinds import StageKind
from tasks.language.session import LanguageArmSession
from tasks.stages.calls import StageCall, StageOutcome
from tasks.stages.decorator import make_stage
from tasks.stages.families import make_keys, stage_functions
from tasks.tensordict.keys import ArmKeys
from tasks.tensordict.session import ArmSession
from trainers.progress import IterationContext, progress_path, progress_stage
from trainers.subprocess_worker import Answer

if TYPE_CHECKING:
    from flows.runners.base import Request, Runner
    from ratchet.store.manifest import Manifest
    from tasks.stages.session import BaseSession

_MAX_SESSIONS = 4
_sessions: dict[str, ArmSession] = {}
"""Sessions of this worker's most recent arms, with their components."""


class RemoteStageExecutor:
    """Executes stages of arms with a runner, on behalf of the sessions in this process."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._free = asyncio.Semaphore(runner.slots)

    def take(self, session: BaseSession) -> None:
        """Dispatch the stages of an arm to the runner if possible."""
        if not isinstance(session, ArmSession) or isinstance(session, LanguageArmSession):
            return
        if not session.keys.only_tests:  # otherwise its states are in an earlier run
            session.make_elsewhere = lambda call, force: self._execute(session, call, force)

    async def _execute(self, session: ArmSession, call: StageCall, force: bool) -> StageOutcome:
        async with self._free:
            with (
                progress_path(call.arm),
                progress_stage(call.kind),
                IterationContext(steps := num_steps(session.keys, call)) as progress,
                session.observer.under_way(call),
            ):
                progress.set_description(call.title)
                answer = await self._runner.submit(_request(session, call, force))
                manifest = await asyncio.to_thread(_find_result, session, call)
                if manifest.metrics:
                    progress.set_postfix(manifest.metrics[-1].values)
                progress.step(steps)
        for damage in answer["damages"]:
            if session.store.on_damage is not None:
                session.store.on_damage(Damage(**damage))
        return StageOutcome(call, manifest, answer["hit"], answer["reason"])


def _find_result(session: ArmSession, call: StageCall) -> Manifest:
    manifest = session.store.find(call.key, refresh=True)
    if manifest is None:
        raise StoreError(
            f"{call.label}: a worker computed stage {call.key}, but it is not in"
            f" {session.settings.store_url}. Workers must use the same store: choose a shared"
            " folder or a URL with settings.store."
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
            "pins": [[*position, key] for position, key in keys.pins.items()],
            "checkpoints": keys.checkpoints,
            "imitated_rollouts": list(keys.imitated_rollouts),
            "settings": session.settings.to_dict(),
        },
    }


def execute_stage(request: Answer) -> Answer:
    """Compute a stage in the worker and store its result; return the outcome."""
    parts = request["call"]
    call = StageCall(**parts)
    call = replace(
        call, kind=StageKind(**parts["kind"]), fingerprint=Fingerprint(**parts["fingerprint"])
    )
    session = _session(request["arm"])
    changed = session.keys.code_changes(call)
    if changed:
        raise StageKeyError(
            f"{call.label}: this worker's code differs from the run's: {', '.join(changed)}."
            " Install the same version there, and restart its workers."
        )
    damages: list[dict[str, Any]] = []
    session.store.on_damage = lambda damage: damages.append(asdict(damage))
    stage = stage_functions(session.keys)[call.stage]
    run_id = str(session.settings.run_id)
    folder = Path(session.settings.runs) / run_id  # on another machine, it may not exist
    with kept_log(folder, run_id) if folder.is_dir() else nullcontext():
        outcome = make_stage(stage, call, session, force=request["force"])
    return {"hit": outcome.hit, "reason": outcome.reason, "damages": damages}


def _session(arm: dict[str, Any]) -> ArmSession:
    """Return the session of an arm, reused from an earlier stage if available."""
    identity = json.dumps(arm, sort_keys=True)
    session = _sessions.pop(identity, None) or _new_session(arm)
    _sessions[identity] = session
    if len(_sessions) > _MAX_SESSIONS:
        _sessions.pop(next(iter(_sessions))).close()
    return session


def _new_session(arm: dict[str, Any]) -> ArmSession:
    settings = ExperimentSettings.from_dict(arm["settings"])
    hyper_params = HyperParameters.from_dict(arm["hyper_params"], settings.base_dir)
    keys = make_keys(
        arm["name"], hyper_params, base_dir=settings.base_dir, checkpoints=arm["checkpoints"]
    )
    assert isinstance(keys, ArmKeys)  # as in the run's process
    keys.pins = {(name, iteration): key for name, iteration, key in arm["pins"]}
    keys.imitated_rollouts = tuple(arm["imitated_rollouts"])
    store = StageStore(settings.store_url, lease_seconds=settings.lease_seconds)
    return ArmSession(keys, settings, store)
