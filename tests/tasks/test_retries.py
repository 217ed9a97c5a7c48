"""A stage is not tried again where it would fail the same way, however that is wrapped."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace

import pytest
from prefect.client.schemas.objects import State
from prefect.states import Failed

from ratchet.errors import ParameterError, PromptTooLongError, RolloutError
from tasks.stages.decorator import _is_worth_a_retry


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
    task = SimpleNamespace(retries=1)
    task_run = SimpleNamespace(name="train main 0-10", run_count=1)
    with caplog.at_level(logging.INFO, logger="tasks.stages.decorator"):
        assert asyncio.run(_is_worth_a_retry(task, task_run, state)) is expected
    how = " at attempt 1, tried again" if expected else ", and would again"
    assert f"train main 0-10 failed{how}: {type(error).__name__}" in caplog.text
