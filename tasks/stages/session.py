"""``BaseSession``: what the stages of any arm share in one process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Executor, Future
from concurrent.futures import TimeoutError as WaitedLongEnough
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ratchet.errors import StageFailedError
from ratchet.tracking.observing import StageObserver

if TYPE_CHECKING:
    from ratchet.language_models.asking import ModelCalls
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.store.store import StageStore
    from tasks.stages.calls import StageCall
    from tasks.stages.decorator import Stage, StageOutcome
    from tasks.stages.keys import BaseKeys

    MakeElsewhere: TypeAlias = Callable[[StageCall, bool], Awaitable[StageOutcome]]

STATE_FOLDER = "state"
_LOOK_EVERY = 0.1
TRANSCRIPTS_FILE = "transcripts.jsonl"
"""What the report shows of a stage's rollouts, a line each."""


def film_name(episode: int) -> str:
    """Return the name of a film of a test's episode in the stage's folder."""
    return f"videos/{episode}.gif"


class FinishedTask:
    """Stands for a finished task of the flow run: Prefect knows whose result it is.

    Its state would do, but to wait for one Prefect asks another thread for its result each time.
    """


@dataclass
class TaskGraph:
    """Which tasks of the flow run have made or found stages, by the stages' keys.

    ``inputs`` are the keys that each has followed, ``trained`` iteration → key of the training.
    """

    done: dict[str, FinishedTask] = field(default_factory=dict)
    inputs: dict[str, set[str | int]] = field(default_factory=dict)
    trained: dict[int, str] = field(default_factory=dict)

    def last(self) -> list[FinishedTask]:
        """Return the tasks that no other has followed to its end."""
        followed = set().union(*(self.inputs[key] for key in self.done))
        return [each for key, each in self.done.items() if key not in followed]


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
        self.executor_beside = executor
        """Where a stage is worked beside which others may work."""
        self.stages: Mapping[str, Stage[Any]] = {}
        """What does each stage, by its name."""
        self.before_calls: Callable[[], None] | None = None
        self.observer = StageObserver()
        self.make_elsewhere: MakeElsewhere | None = None
        """Who makes this arm's stages, and whether anew, if that is not this process."""
        self.fresh = False
        """Whether all is made anew, and nothing that is stored counts."""
        self.tasks = TaskGraph()
        self._ahead: dict[str, Future[None]] = {}

    def make_services_ready(self) -> None:
        """Start what agents speak to; called by each stage that may call a language model."""
        if self.before_calls is not None:
            self.before_calls()

    def model_calls(self, call: StageCall) -> AbstractContextManager[ModelCalls | None]:
        """Return what a stage that makes data asks chat models through; None where nobody pays."""
        return nullcontext()

    def stage_finished(self, call: StageCall) -> None:
        """Let go of what a stage has kept aside while it worked; it is stored now."""

    @contextmanager
    def making_ahead(self, call: StageCall) -> Iterator[Future[None]]:
        """Let stages wait for one that is made while they work; yield what is to be fulfilled."""
        made: Future[None] = Future()
        self._ahead[call.key] = made
        try:
            yield made
        finally:
            made.cancel()
            del self._ahead[call.key]

    def is_made_ahead(self, call: StageCall) -> bool:
        """Return whether a stage is made while another one works."""
        return call.key in self._ahead

    def find_ahead(self, call: StageCall) -> Callable[[], Path] | None:
        """Return how to wait for the folder of a stage that is stored, or is being made meanwhile.

        None if it is neither.
        """
        made = self._ahead.get(call.key)
        if made is None and self.store.find(call.key) is None:
            return None

        def wait() -> Path:
            if made is not None:
                _wait_for(made, call)
            return self.store.open(call.key)

        return wait

    def close(self) -> None:
        """Let go of everything that was built."""
        self.executor.shutdown()


class AheadFailedError(StageFailedError):
    """What a stage has waited for was not made."""


def _wait_for(made: Future[None], call: StageCall) -> None:
    """Wait for a stage that is made meanwhile; not for ever, since threads are interrupted."""
    while True:
        try:
            return made.result(_LOOK_EVERY)
        except WaitedLongEnough:
            pass
        except CancelledError as error:
            raise AheadFailedError(f"{call.label}, which was made meanwhile, failed.") from error
