"""``TextArmSession``: process-local context shared by the stages of one arm of chat models.

Only the data are shared: each stage builds a separate trainer, so that stages may run concurrently
and independently.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeAlias, TypeVar

from ratchet.language_models.ledger import Ledger
from ratchet.language_models.pricing import Budget
from tasks.stages.files import DATASETS_FOLDER, STATE_FOLDER
from tasks.stages.session import BaseSession, RunBilling

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ratchet.language_models.auxiliary_calls import ModelCalls
    from ratchet.parameters.curriculum import Phase
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.protocols.handler import ProtocolHandler
    from ratchet.scenarios.base import Dataset
    from ratchet.store.store import StageStore
    from tasks.stages.calls import StageCall
    from tasks.text.keys import TextArmKeys
    from trainers.text.base import PureTextRlTrainer
    from trainers.text.jobs import JobAwaiting
    from trainers.text.state import State

    JobTask: TypeAlias = Callable[[StageCall, str, JobAwaiting], Awaitable[object]]

JOURNALS_FOLDER = "journals"

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class TextArmSession(BaseSession):
    """The components of one arm of chat models.

    Attributes
    ----------
    await_job
        Awaits each fine-tuning job, e.g. as a separate task, if set: takes the stage, the name of
        the group, and the awaiting function.
    """

    keys: TextArmKeys

    def __init__(
        self,
        keys: TextArmKeys,
        settings: ExperimentSettings,
        store: StageStore,
        billing: RunBilling | None = None,
    ) -> None:
        super().__init__(keys, settings, store, DaemonThreads(f"stages of {keys.arm}"))
        self.billing = billing or RunBilling(Ledger(Budget(settings.budget)))
        self.await_job: JobTask | None = None
        self._datasets: Mapping[str, Dataset] | None = None
        self._lock = threading.Lock()

    def new_trainer(self, phase: Phase | None = None, *, calls: bool = False) -> PureTextRlTrainer:
        """Build a trainer for one stage, with the parameters of a phase or the experiment's.

        ``calls``: whether the stage calls a service, which is then started; the trainer is billed
        in the run's ledger.
        """
        from ratchet.scenarios.registry import assemble_scenario_instance

        keys, settings = self.keys, self.settings
        if calls:
            settings = settings.model_copy(update={"budget": self.billing.left})
            self.make_services_ready()
        hyper_params = keys.hyper_params if phase is None else phase.hyper_params
        instance = assemble_scenario_instance(
            hyper_params, settings, self.datasets, keys.text_class.trainer_type, keys.base_path
        )
        trainer = keys.text_class(hyper_params, instance, settings)
        trainer.ledger = self.billing.ledger
        trainer.phase = phase
        return trainer

    def trainer_at(
        self, key: str, phase: Phase | None = None, *, calls: bool = False
    ) -> PureTextRlTrainer:
        """Build a trainer with the final state of a stored stage."""
        trainer = self.new_trainer(phase, calls=calls)
        trainer.state = self._load_state(key)
        return trainer

    def trainer_in(
        self, iteration: int, *, calls: bool = False, callbacks: State | None = None
    ) -> PureTextRlTrainer:
        """Build the trainer of an iteration's phase, with the iteration's initial state.

        ``callbacks``: a state whose callbacks replace those of the initial state.
        """
        phase = self.keys.phase_from(iteration)
        trainer = self.trainer_at(self.keys.state_key(iteration), phase, calls=calls)
        if callbacks is not None:
            trainer.load_callbacks(callbacks)
        if phase is not None and iteration == phase.start:
            trainer.begin_phase()
        return trainer

    def put_pool_members(self, trainer: PureTextRlTrainer, iteration: int) -> None:
        """Let agents that an iteration's phase samples from pools act as their members."""
        phase = self.keys.phase_from(iteration)
        if phase is None or not phase.pools:
            return
        from trainers.pools import member_name, sampled_members  # torch takes seconds

        pool = {
            member_name(agent, done): self.keys.state_key(done)
            for agent, iterations in phase.pools.items()
            for done in iterations
        }
        seed = self.keys.hyper_params.seed
        for agent, member in sampled_members(pool, seed=seed, iteration=iteration).items():
            trainer.act_as(agent, self._load_state(pool[member]))

    def state_of(self, call: StageCall) -> State | None:
        """Read the final state of a stored stage; None if it has none."""
        has_state = (self.store.open(call.key) / STATE_FOLDER).is_dir()
        return self._load_state(call.key) if has_state else None

    def _load_state(self, key: str) -> State:
        state: State = self.keys.trainer_class.State.load(self.store.open(key) / STATE_FOLDER)
        return state

    def watched(self, call: StageCall) -> AbstractContextManager[None]:
        """Return the context in which a stage spends money."""
        return self.billing.watched(call, self.settings.run_id)

    @property
    def datasets(self) -> Mapping[str, Dataset]:
        """The stored datasets, read once."""
        with self._lock:
            if self._datasets is None:
                folder = self.store.open(self.keys.build_scenario().key) / DATASETS_FOLDER
                load = self.keys.scenario.load_dataset
                self._datasets = {path.name: load(path) for path in sorted(folder.iterdir())}
            return self._datasets

    @cached_property
    def protocol(self) -> ProtocolHandler:
        """The arm's protocol."""
        from ratchet.protocols.registry import build_protocol_handler

        return build_protocol_handler(self.keys.hyper_params, base_dir=self.keys.base_path)

    @contextmanager
    def model_calls(self, call: StageCall) -> Iterator[ModelCalls]:
        """Open the calls of a stage that builds data: journaled and billed like those of agents."""
        from ratchet.language_models.auxiliary_calls import ModelCalls
        from ratchet.language_models.usage import UsageMeter

        usage = UsageMeter(call.stage, self.billing.ledger)
        with (
            self.watched(call),
            ModelCalls(self.settings, usage, self.journal(call), self.make_services_ready) as calls,
        ):
            yield calls

    def journal(self, call: StageCall) -> Path:
        """Return the journal of a stage's finished calls, used until the stage is stored."""
        return Path(self.settings.home) / JOURNALS_FOLDER / f"{call.key}.jsonl"

    def stage_finished(self, call: StageCall) -> None:
        """Remove the journal of a stage that is stored."""
        self.journal(call).unlink(missing_ok=True)


class DaemonThreads(Executor):
    """Executor with one daemon thread per job, so that the process can exit at any time.

    A stage may wait hours for a service; interrupting the run must not wait for it.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def submit(
        self,
        fn: Callable[_Parameters, _Result],
        /,
        *args: _Parameters.args,
        **kwargs: _Parameters.kwargs,
    ) -> Future[_Result]:
        """Start a thread that executes the function."""
        future: Future[_Result] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 -- passed to the caller
                future.set_exception(error)
            else:
                future.set_result(result)

        threading.Thread(target=work, name=self._name, daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Return immediately: the threads end with their job or with the process."""
