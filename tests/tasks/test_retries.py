"""A stage is not tried again where it would fail the same way, however that is wrapped."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prefect.client.schemas.objects import State, TaskRun
from prefect.states import Failed

from ratchet.errors import ParameterError, PromptTooLongError, RolloutError
from ratchet.store.fingerprint import Fingerprint
from ratchet.tracking.live_file import NamedStage
from ratchet.tracking.observing import StageObserver
from tasks.stages.calls import StageCall
from tasks.stages.decorator import StageOutcome, _is_worth_a_retry, _Request


def call() -> StageCall:
    return StageCall("main", "train", {}, {}, Fingerprint("f" * 64, {}), iteration=10)


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
        (ConnectionError("gone"), True),
    ],
)
def test_what_would_fail_again_is_not_tried_again(
    error: Exception, expected: bool, caplog: pytest.LogCaptureFixture
) -> None:
    state: State[object] = Failed(data=error, message=str(error))
    assert asyncio.run(_is_worth_a_retry(None, cast(TaskRun, None), state)) is expected
    heard: list[bool] = []

    class Observer(StageObserver):
        def failed(self, call: NamedStage, error: Exception, *, again: bool) -> None:
            heard.append(again)

    async def fails(call: StageCall, force: bool) -> StageOutcome:
        raise error

    settings = SimpleNamespace(retries=1)
    session = SimpleNamespace(settings=settings, observer=Observer(), make_elsewhere=fails)
    one = call()
    request: Any = _Request(cast(Any, None), one, one.label, cast(Any, session), True)
    for _ in range(2):
        level = caplog.at_level(logging.INFO, logger="tasks.stages.decorator")
        with level, pytest.raises(type(error)):
            asyncio.run(request.fulfil())
    how = " at attempt 1, tried again" if expected else ", and would again"
    assert f"train main 0-10 failed{how}: {type(error).__name__}" in caplog.text
    assert heard == [expected, False]
