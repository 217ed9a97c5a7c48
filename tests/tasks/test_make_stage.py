"""A stage is computed unless the store has it; without Prefect."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors import SafetensorError

from ratchet.errors import StoreError
from ratchet.language_models.ledger import Charge, Ledger
from ratchet.language_models.pricing import Budget
from ratchet.parameters.settings import ExperimentSettings
from ratchet.store.fingerprint import Fingerprint
from ratchet.store.store import StageStore
from ratchet.tracking.stage_kinds import kind_of
from tasks.stages import failures
from tasks.stages.calls import StageCall, StageOutcome
from tasks.stages.decorator import Stage, make_stage
from tasks.stages.session import BaseSession, RunBilling

CODE = Fingerprint.from_modules({"trainers.one": "1" * 64})


class Session(BaseSession):
    """Session that notes the finished stages."""

    finished: list[str]

    def stage_finished(self, call: StageCall) -> None:
        self.finished.append(call.name)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., StageOutcome]]:
    keys: Any = SimpleNamespace(custom_code=())
    store = StageStore(tmp_path / "store")
    session = Session(keys, ExperimentSettings(), store, ThreadPoolExecutor(1))
    session.finished = []

    def work(call: StageCall, folder: Path, session: Session) -> list[Any]:
        (folder / "state").write_text("new")
        return []

    def make(start: int, *, stage: str = "train", force: bool = False) -> StageOutcome:
        call = StageCall("main", kind_of(stage), {}, {}, CODE, iteration=4, start_iteration=start)
        session.finished.clear()
        outcome = make_stage(Stage(work), call, session, force=force)
        assert session.finished == [stage], "its temporary files are deleted"
        return outcome

    with closing(session):
        yield make


def test_training_is_recomputed_if_the_stored_metrics_start_too_late(
    make: Callable[..., StageOutcome],
) -> None:
    assert [make(start).hit for start in (2, 2, 3, 0, 1)] == [False, True, True, False, True]
    assert make(0).manifest.start_iteration == 0
    assert [make(start, stage="test").hit for start in (2, 0)] == [False, True]


def test_a_stored_stage_is_replaced_on_request(make: Callable[..., StageOutcome]) -> None:
    first = make(0).manifest
    assert make(0).manifest == first
    forced = make(0, force=True)
    assert not forced.hit
    assert forced.manifest.created >= first.created


@pytest.mark.parametrize(
    ("error", "file"),
    [
        (
            SafetensorError("Error while serializing: No space left on device (os error 28)"),
            "fuller",
        ),
        (OSError(errno.ENOSPC, "No space left on device", "/other/x.bin"), "/other/x.bin"),
    ],
)
def test_a_full_disk_is_named_with_the_file_or_the_fuller_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, file: str
) -> None:
    fuller = tmp_path / "fuller"
    monkeypatch.setattr(failures.tempfile, "gettempdir", lambda: str(fuller))
    free = {str(fuller): 1}
    usage = lambda folder: SimpleNamespace(free=free.get(str(folder), 10**12))  # noqa: E731
    monkeypatch.setattr(failures.shutil, "disk_usage", usage)
    keys: Any = SimpleNamespace(custom_code=())
    store = StageStore(tmp_path / "store")
    call = StageCall("main", kind_of("train"), {}, {}, CODE, iteration=4)

    def work(call: StageCall, folder: Path, session: BaseSession) -> list[Any]:
        raise error

    with (
        closing(BaseSession(keys, ExperimentSettings(), store, ThreadPoolExecutor(1))) as session,
        pytest.raises(StoreError, match=rf"could not write train main 0-4 .*\(at .*{file}\)"),
    ):
        make_stage(Stage(work), call, session)
    assert store.find(call.key) is None


def test_what_is_left_of_a_budget_is_never_negative() -> None:
    billing = RunBilling(Ledger(Budget(3.0)))
    billing.ledger.settle("call", Charge(1.0, 2.0))
    assert billing.left == 1.0
    billing.ledger.settle("other", Charge(2.0, 2.0))
    assert billing.left == 0.0
    assert RunBilling(Ledger()).left is None
