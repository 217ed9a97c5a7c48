"""Every function that a stage executes is in the stage's fingerprint, or is infrastructure.

The stages of small experiments run under a profiler. This detects code that a name-based search
cannot reach, whose changes would not invalidate stored stages.
"""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from contextlib import closing, contextmanager
from pathlib import Path
from types import CodeType, FrameType

import pytest

from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.settings import ExperimentSettings
from ratchet.shadowing import ROOT
from ratchet.store import fingerprint
from ratchet.store.closure import COMPLETE, Closure
from ratchet.store.fingerprint import Fingerprint
from ratchet.store.infrastructure import is_infrastructure
from ratchet.store.source_cache import read_source
from ratchet.store.store import StageStore
from tasks.stages.driver import run_stages
from tasks.stages.families import make_keys, open_session, stage_functions
from tasks.stages.keys import BaseKeys
from tests.tasks.naive_trainers import FAMILIES, LANGUAGE
from tests.tasks.phased import PARAMETERS, PHASES

_IS_FUNCTION = 1  # CO_OPTIMIZED: not the body of a class or a module, which run on import
COMPUTES_KEYS = {
    *("agent_code", "asked_for_data", "digests", "file_digests", "own_data_code", "played_files"),
    *("iteration_stages", "playing_class", "stage_key_parameters", "stage_parameters"),
    *("stage_purposes", "runs_in_stages", "supports_stages", "tests_during_training"),
    *("unread", "without_places"),
}
"""Methods that compute keys; stages call them to find each other."""
BILLING = {
    *("ChatRequest.most_tokens", "OpenAiBackend", "RatchetBackend", "register_tuning_backend"),
    *("ModelCalls", "TextArmSession"),
}
"""Billing of chat model stages and requests to services; services are not in keys."""
CHAT_PHASES = [
    {"name": "first", "num_iterations": 1, "learners": ["prover"]},
    {"name": "second", "num_iterations": 1, "partners": {"prover": "pool"}, "fresh": ["verifier"]},
]
EXPERIMENTS = {
    "networks": {**PARAMETERS, "phases": PHASES},
    "library": {
        **FAMILIES["library"][1],
        "trainer": "torchrl_ppo",
        "rl": {},
        "torchrl": {
            "batches_per_iteration": 2,
            "config": {
                "collector": {"frames_per_batch": 24},
                "trainer": {"total_frames": 96, "num_epochs": 1},
                "replay_buffer": {"batch_size": 8},
            },
        },
    },
    "language": {**LANGUAGE, "trainer": "grpo", "rl": {"num_iterations": 2}},
    "chat": {**FAMILIES["chat"][1], "trainer": "pure_text_ei", "rl": {}, "phases": CHAT_PHASES},
}


class Watched:
    """Recorder of the functions that stages execute and the definitions in their fingerprints."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.executed: dict[str, set[CodeType]] = defaultdict(set)
        self.closures: dict[str, Closure] = {}
        last: list[Closure] = []
        digests, compute = Closure.digests, BaseKeys.fingerprint

        def note_closure(closure: Closure) -> dict[str, str]:
            last.append(closure)
            return digests(closure)

        def note_stage(keys: BaseKeys, stage: str, parameters: object) -> Fingerprint:
            before = len(last)
            found = compute(keys, stage, parameters)  # type: ignore[arg-type]
            if len(last) > before:
                self.closures[stage] = last[-1]
            return found

        monkeypatch.setattr(Closure, "digests", note_closure)
        monkeypatch.setattr(BaseKeys, "fingerprint", note_stage)

    @contextmanager
    def during(self, stage: str):
        """Record function calls, also in threads started during the block."""

        def note(frame: FrameType, event: str, _: object) -> None:
            if event == "call" and frame.f_code.co_flags & _IS_FUNCTION:
                self.executed[stage].add(frame.f_code)

        threading.setprofile(note)
        sys.setprofile(note)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def missing(self) -> list[str]:
        """Return the executed functions that are in no fingerprint, by stage."""
        return sorted(
            f"{stage}: {place}"
            for stage, codes in self.executed.items()
            for code in codes
            if (place := _missing(self.closures[stage], code)) is not None
        )


def _missing(closure: Closure, code: CodeType) -> str | None:
    """Return a function's name if it affects results and is not in the closure."""
    path = Path(code.co_filename)
    if not path.is_relative_to(ROOT) or path.relative_to(ROOT).parts[0] not in TOPS:
        return None
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    names = code.co_qualname.partition(".<locals>")[0].split(".")
    method = ".".join(names[:2])
    if is_infrastructure(module) or names[-1] in COMPUTES_KEYS or {names[0], method} & BILLING:
        return None
    reached = closure.reached.get(path, set())
    if COMPLETE in reached or method in reached or names[0].startswith("<"):
        return None
    if names[0] in reached:
        methods = read_source(closure.sources[path]).classes[names[0]].methods
        if names[1] not in methods:  # it belongs to the class itself
            return None
    return f"{module}:{code.co_qualname}"


TOPS = ("ratchet", "trainers", "tasks")


def _run(parameters: dict[str, object], folder: Path, watched: Watched) -> None:
    settings = ExperimentSettings(home=str(folder), iterations_per_task=1, progress="none")
    store = StageStore(settings.store_url, reserve_bytes=0)
    keys = make_keys("main", HyperParameters(**parameters))
    functions = stage_functions(keys)
    with (
        closing(open_session(keys, settings, store)) as session,
        pytest.MonkeyPatch.context() as patch,
    ):
        for function in functions.values():
            patch.setattr(function, "work", _watching(function.work, watched))
        run_stages(session)


def _watching(work, watched):
    def traced(call, folder, session):
        with watched.during(call.stage):
            return work(call, folder, session)

    return traced


@pytest.mark.slow
@pytest.mark.in_turn(2)
@pytest.mark.parametrize("family", EXPERIMENTS)
def test_executed_code_is_in_the_fingerprint(family, tmp_path, monkeypatch):
    monkeypatch.setattr(fingerprint, "_PROJECT_DIGESTS", {})  # no closure from an earlier test
    watched = Watched(monkeypatch)
    _run(EXPERIMENTS[family], tmp_path, watched)
    assert len(watched.executed) > 2, "no stages ran"
    assert sum(map(len, watched.executed.values())) > 300, "the profiler recorded too few functions"
    assert watched.missing() == []
