"""Stages are not retried after deterministic errors, also if these are wrapped."""

from __future__ import annotations

import asyncio
import errno
import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prefect.client.schemas.objects import State, TaskRun
from prefect.states import Failed

from ratchet.errors import (
    CustomCodeError,
    OutOfMemoryError,
    ParameterError,
    PromptTooLongError,
    RatchetError,
    RolloutError,
)
from ratchet.parameters.settings import ExperimentSettings
from ratchet.plugins import load_module
from ratchet.store.backend import store_error
from ratchet.store.fingerprint import Fingerprint
from ratchet.store.store import StageStore
from ratchet.tracking.live_file import StageRef
from ratchet.tracking.observers import StageObserver
from ratchet.tracking.stage_kinds import TRAIN
from tasks.stages.calls import StageCall, StageOutcome
from tasks.stages.decorator import Stage, make_stage
from tasks.stages.driver import attempt_stage, execute_stage
from tasks.stages.failures import could_succeed, explained
from tasks.stages.prefect_tasks import _is_worth_a_retry
from tasks.stages.session import BaseSession


def call() -> StageCall:
    return StageCall("main", TRAIN, {}, {}, Fingerprint("f" * 64, {}), iteration=10)


@pytest.mark.parametrize(
    ("parameters", "advice"),
    [({}, "rl.frames_per_batch"), ({"scenario": "language_task"}, "language.micro_batch_size")],
)
def test_advice_for_too_little_memory_depends_on_what_is_trained(
    parameters: dict[str, Any], advice: str
) -> None:
    error = RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has …")
    stage = replace(call(), parameters=parameters)
    with pytest.raises(OutOfMemoryError, match=advice) as raised, explained(stage):
        raise error
    assert "GPU 0" not in str(raised.value)
    assert not could_succeed(raised.value)


def wrapped(cause: Exception) -> RolloutError:
    error = RolloutError("3 of 4 rollouts failed")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ParameterError("wrong"), False),
        (wrapped(PromptTooLongError("too long")), False),
        (wrapped(ConnectionError("gone")), True),
        (NameError("name 'rewrad' is not defined"), False),
        (wrapped(AttributeError("no attribute")), False),
        (ConnectionError("gone"), True),
        (store_error("write", "store", OSError(errno.ENOSPC, "No space left on device")), False),
        (store_error("write", "store", OSError(errno.EIO, "Input/output error")), True),
    ],
)
def test_deterministic_errors_are_not_retried(
    error: Exception, expected: bool, caplog: pytest.LogCaptureFixture
) -> None:
    state: State[object] = Failed(data=error, message=str(error))
    assert asyncio.run(_is_worth_a_retry(None, cast(TaskRun, None), state)) is expected
    heard: list[bool] = []

    class Observer(StageObserver):
        def failed(self, call: StageRef, error: Exception, *, again: bool) -> None:
            heard.append(again)

    async def fails(call: StageCall, force: bool) -> StageOutcome:
        raise error

    settings = SimpleNamespace(retries=1, retry_delay_seconds=0, run_id="r")
    session: Any = SimpleNamespace(settings=settings, observer=Observer(), make_elsewhere=fails)
    stage = cast(Stage[Any], None)
    with caplog.at_level(logging.INFO, logger="tasks.stages.driver"):
        for attempt in (1, 2):  # as Prefect's tasks
            with pytest.raises(type(error)):
                asyncio.run(attempt_stage(stage, call(), session, True, attempt))
    how = " at attempt 1, retrying" if expected else " and would fail again"
    assert f"train main 0-10 failed{how}: {type(error).__name__}" in caplog.text
    is_unexpected = not expected and not isinstance(error, RatchetError)
    assert ("Traceback" in caplog.text) == is_unexpected
    assert heard == [expected, False]
    heard.clear()
    with pytest.raises(type(error)):  # without Prefect
        asyncio.run(execute_stage(stage, call(), session, True))
    assert heard == ([True, False] if expected else [False])


MISTAKE = """
def score(task):
    return [rewrad for _ in task]
"""


def test_a_mistake_in_a_users_file_is_reported_with_file_line_and_function(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MISTAKE)
    score = load_module("mine.py", tmp_path).score

    def work(call: StageCall, folder: Path, session: Any) -> Any:
        return score([1])

    keys: Any = SimpleNamespace(custom_code=())
    session: Any = BaseSession(
        keys, ExperimentSettings(), StageStore(tmp_path / "store"), cast(Any, None)
    )
    with pytest.raises(CustomCodeError) as caught:
        make_stage(Stage(work), call(), session)
    first, advice, last = str(caught.value).splitlines()
    assert "resume the run, which keeps" in advice, "the corrected code has new keys"
    assert first == "train main 0-10: NameError: name 'rewrad' is not defined"
    assert last == f"{tmp_path / 'mine.py'}:3 in score.<locals>.<listcomp>"
    assert (
        asyncio.run(
            _is_worth_a_retry(None, cast(TaskRun, None), Failed(data=caught.value, message=""))
        )
        is False
    )
