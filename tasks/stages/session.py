"""``BaseSession``: what the stages of any arm share in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Executor, Future
from concurrent.futures import TimeoutError as WaitedLongEnough
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.errors import StageFailedError

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

    from ratchet.language_models.asking import ModelCalls
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.store.store import StageStore
    from tasks.stages.calls import StageCall
    from tasks.stages.decorator import Stage
    from tasks.stages.keys import BaseKeys

STATE_FOLDER = "state"
_LOOK_EVERY = 0.1
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
        self.executor_beside = executor
        """Where a stage is worked beside which others may work."""
        self.stages: Mapping[str, Stage[Any]] = {}
        """What does each stage, by its name."""
        self.on_wait: Callable[[str], None] | None = None
        self.before_calls: Callable[[], None] | None = None
        self.under_way: Callable[[StageCall], AbstractContextManager[object]] = nullcontext
        self.fresh = False
        """Whether all is made anew, and nothing that is stored counts."""
        self._tasks: dict[str, State[Any]] = {}
        self._inputs: dict[str, set[str | int]] = {}
        self._trained: dict[int, str] = {}
        self._ahead: dict[str, Future[None]] = {}

    def task_done(self, call: StageCall, state: State[Any]) -> None:
        """Note the final state of the task that has made or found a stage."""
        self._tasks[call.key] = state
        if call.stage == "train":
            self._trained[call.iteration] = call.key

    def tasks_before(self, call: StageCall) -> list[State[Any]]:
        """Return the states of the tasks that a call follows: the edges of the graph.

        Those are the tasks whose stages it takes in, but for what one of these takes in too.
        """
        inputs: set[str | int] = set(call.inputs.values())
        if call.stage == "train" and call.start_iteration in self._trained:
            inputs.add(self._trained[call.start_iteration])  # its key knows the first state alone
        self._inputs[call.key] = inputs
        known = inputs & self._tasks.keys()
        nearer = known.difference(*(self._inputs.get(str(key), ()) for key in known))
        return [state for key, state in self._tasks.items() if key in nearer]

    def last_tasks(self) -> list[State[Any]]:
        """Return the states of the tasks whose stages no other has taken in."""
        taken = set().union(*self._inputs.values())
        return [state for key, state in self._tasks.items() if key not in taken]

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
