"""``BaseSession``: what the stages of any arm share in one process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ratchet.language_models.asking import ModelCalls
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.store.store import StageStore
    from tasks.stages.calls import StageCall
    from tasks.stages.keys import BaseKeys

STATE_FOLDER = "state"
TRANSCRIPTS_FILE = "transcripts.jsonl"
"""What the report shows of a stage's rollouts, a line each."""


def film_name(episode: int) -> str:
    """Return the name of a film of a test's episode in the stage's folder."""
    return f"videos/{episode}.gif"


class BaseSession:
    """What the stages of any arm need of the process."""

    def __init__(
        self,
        keys: BaseKeys,
        settings: ExperimentSettings,
        store: StageStore,
        executor: Executor,
    ) -> None:
        self.keys = keys
        self.settings = settings
        self.store = store
        self.executor = executor
        self.on_wait: Callable[[str], None] | None = None
        self.before_calls: Callable[[], None] | None = None
        self.under_way: Callable[[StageCall], AbstractContextManager[object]] = nullcontext

    def make_services_ready(self) -> None:
        """Start what agents speak to; called by each stage that may call a language model."""
        if self.before_calls is not None:
            self.before_calls()

    def model_calls(self, call: StageCall) -> AbstractContextManager[ModelCalls | None]:
        """Return what a stage that makes data asks chat models through; None where nobody pays."""
        return nullcontext()

    def stage_finished(self, call: StageCall) -> None:
        """Let go of what a stage has kept aside while it worked; it is stored now."""

    def close(self) -> None:
        """Let go of everything that was built."""
        self.executor.shutdown()
