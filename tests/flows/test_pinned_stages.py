"""Forks and resumed runs reuse recorded stages only where these fit."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from flows.runs.pinned_stages import _is_shared, _longest_chain, _matches
from flows.runs.references import ForkPoint
from ratchet.store.fingerprint import Fingerprint
from ratchet.tracking.manifest import StageRecord
from ratchet.tracking.stage_kinds import INITIAL_STATE, KINDS, TEST, TRAIN, StageKind
from tasks.stages.calls import StageCall

CALL = StageCall(
    arm="main",
    kind=INITIAL_STATE,
    inputs={"data": "1" * 64},
    parameters={"stage_version": 1, "seed": 2},
    fingerprint=Fingerprint.from_modules({}),
)


@pytest.mark.parametrize(
    ("point", "stage", "iteration", "shared"),
    [
        ("0:sample_rollouts", "initial_state", 0, False),
        ("0:log_stats", "initial_state", 0, True),
        ("2:log_stats", "sample_rollouts", 2, True),
        ("2:log_stats", "log_stats", 2, False),
        ("2:log_stats", "create_fine_tune_jobs", 1, True),
        ("2:log_stats", "sample_rollouts", 3, False),
        ("2:log_stats", "test", 1, False),
    ],
)
def test_a_fork_shares_the_stages_before_its_point(
    point: str, stage: str, iteration: int, shared: bool
) -> None:
    number, _, name = point.partition(":")
    fork = ForkPoint.from_stage(int(number), name)
    assert fork.is_after(replace(CALL, kind=KINDS[stage], iteration=iteration)) is shared


def test_the_stages_that_a_fork_continues_directly_are_required() -> None:
    def required(iteration: int, stage: str) -> list[tuple[str, int]]:
        return ForkPoint.from_stage(iteration, stage).required

    assert required(0, "sample_rollouts") == [("initial_state", 0)]
    assert required(2, "sample_rollouts") == [("await_fine_tune_jobs", 1)]
    jobs = [("sample_rollouts", 2), ("create_fine_tune_jobs", 2)]
    assert required(2, "log_stats") == [("await_fine_tune_jobs", 1), jobs[0]]
    assert required(2, "await_fine_tune_jobs") == [("await_fine_tune_jobs", 1), *jobs]


@pytest.mark.parametrize(
    ("changes", "shared", "matches"),
    [
        ({}, True, True),
        ({"inputs": {"data": "2" * 64}}, False, False),
        ({"parameters": {"stage_version": 1, "seed": 3}}, False, True),
        ({"parameters": {"stage_version": 2, "seed": 2}}, False, False),
    ],
)
def test_a_stored_stage_is_reused_if_only_its_code_differs(
    changes: dict[str, Any], shared: bool, matches: bool
) -> None:
    stored: Any = replace(CALL, **changes)
    keys: Any = SimpleNamespace(family_kinds=KINDS.values())
    assert _is_shared(stored, CALL, keys, None) is shared
    assert _matches(stored, CALL) is matches
    for kind in (TEST, TRAIN, StageKind("fit")):
        assert not _is_shared(stored, replace(CALL, kind=kind), keys, None)
    assert not _matches(None, CALL)


@pytest.mark.parametrize(
    ("links", "last", "expected"),
    [
        ([(0, 3), (3, 6)], None, [6, 3]),
        ([(0, 3), (3, 6)], 5, [3]),
        ([(0, 3), (4, 6)], None, [3]),
        ([(4, 6)], None, []),
    ],
)
def test_training_is_reused_up_to_the_first_gap(
    links: list[tuple[int, int]], last: int | None, expected: list[int]
) -> None:
    records = [
        StageRecord(stage="train", start_iteration=start, iteration=stop, key="", hit=False)
        for start, stop in links
    ]
    assert [record.iteration for record in _longest_chain(records, last)] == expected
