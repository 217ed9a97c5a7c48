"""Training of local networks in stages: loops, state and checkpoints around one iteration.

A subclass says what an iteration and a test do, and what its state is made of. Everything here
calls those and nothing else, so that ``train`` and any cut into stages do the same.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tensordict.nn.probabilistic import InteractionType, set_interaction_type

from ratchet.errors import ParameterError, StateError
from ratchet.parameters.agents import DEFAULT_AGENT
from ratchet.parameters.purposes import Purpose
from trainers.callbacks.base import CallbackState
from trainers.callbacks.trainer import CallbackTrainer
from trainers.custom_state import Attributes, put_attributes, take_attributes
from trainers.progress import IterationContext, attach_progress_bar, report_iterations
from trainers.sampled_tests import sampled_test, tests_both_ways
from trainers.stage_parameters import StagePurposes, stage_parameters
from trainers.staged import Metrics, StagedTrainer, TestResult
from trainers.tensordict.base import TensorDictTrainer
from trainers.tensordict.states import snapshots
from trainers.tensordict.states.state import State as TrainerState
from trainers.tensordict.statistics.episodes import test_names

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters

STAGE = "train"
_PLAYED = frozenset({Purpose.GAME, Purpose.NETWORKS})
TENSOR_STAGES: StagePurposes = {
    "initial_state": _PLAYED | {Purpose.NORMALIZATION},
    "pretrain": frozenset({Purpose.PRETRAINING}),
    "imitate": _PLAYED | {Purpose.IMITATION},
    "train": _PLAYED | {Purpose.LEARNING, Purpose.CRITIC},
    "test": _PLAYED | {Purpose.TESTS},
}
"""What each stage reads parameters for."""
_LOOPS = (
    *("train", "_train_and_test", "_run_train_loop", "_run_test_loop"),
    *("_pretrain_agents", "_have_agents_imitate"),
)


class StagedTensorDictTrainer(CallbackTrainer, TensorDictTrainer, StagedTrainer):
    """Base of trainers of local networks whose training is a row of alike iterations."""

    State: ClassVar[type[Any]] = TrainerState
    test_results: dict[str, TestResult]
    """What the last :meth:`_run_test_loop` found, by dataset."""
    _iteration: int = 0
    _stage: str | None = None

    # -- what a subclass writes ------------------------------------------------------------

    @abstractmethod
    def _take_state(self, iteration: int, stage: str) -> Any:  # noqa: ANN401 -- of the State class
        """Copy everything that the next iteration depends on."""

    @abstractmethod
    def _load_state(self, state: Any) -> None:  # noqa: ANN401
        """Put back what :meth:`_take_state` returned."""

    @abstractmethod
    def _do_iteration(self, iteration: int) -> Metrics:
        """Run one iteration; return its metrics."""

    @abstractmethod
    def _test_on(self, dataset: str, iteration_context: IterationContext | None) -> TestResult:
        """Test on a dataset, inside the test context."""

    @property
    @abstractmethod
    def num_test_iterations(self) -> int:
        """The number of steps of the test's progress."""

    def _pretrain_agents(self) -> None:
        """Train each agent's body alone, supervised, and put it into the state."""
        if self._stage is None:
            self.initial_state()
        for name in self.pretrained_agents:
            result = self.pretrain(name)
            for epoch, metrics in enumerate(result.metrics):
                self.log_stats(metrics, iteration=epoch, stage=f"pretrain.{name}")
            self.load_pretrained(name, result)

    def _have_agents_imitate(self) -> None:
        """Have those who imitate learn from their models, and put that into the state."""
        names = self.imitating_agent_names(self.hyper_params)
        learned = {name: self.imitate(name) for name in names}
        for name, result in learned.items():
            for iteration, metrics in enumerate(result.metrics):
                self.log_stats(metrics, iteration=iteration, stage=f"imitate.{name}")
            self.load_imitated(name, result)

    # -- state -----------------------------------------------------------------------------

    @property
    def iteration(self) -> int:
        """The number of finished training iterations."""
        return self._iteration

    @property
    def state(self) -> Any:  # noqa: ANN401
        """What the next iteration continues from; a copy.

        Raises StateError before :meth:`initial_state` or :meth:`train`.
        """
        if self._stage is None:
            raise StateError(
                f"{type(self).__name__}: there is no state yet. Call initial_state() or train(),"
                " or set a saved one."
            )
        state = self._take_state(self._iteration, self._stage)
        state.attributes = self._take_attributes()
        if self.callbacks:
            state.callbacks = self.callbacks.take_values()
            state.callback_tensors = self.callbacks.take_tensors()
        return state

    @state.setter
    def state(self, state: Any) -> None:  # noqa: ANN401
        self._load_state(state)
        self._put_attributes(state.attributes)
        if self.callbacks:
            self.callbacks.load(state.callbacks, state.callback_tensors)
        self._iteration, self._stage = state.iteration, state.stage

    def _take_attributes(self) -> Attributes:
        return take_attributes(self)

    def _put_attributes(self, attributes: Attributes) -> None:
        put_attributes(self, attributes)

    @classmethod
    def calls_callbacks(cls) -> bool:
        """Return True: they are told."""
        return True

    def take_weights(self) -> CallbackState:
        """Copy all agents' parameters and buffers."""
        agents = snapshots.take_agents(self.combined_agents)
        return CallbackState(tensors=snapshots.flatten_agents(agents))

    def put_weights(self, weights: CallbackState) -> None:
        """Put in place what :meth:`take_weights` returned."""
        agents = snapshots.unflatten_agents(weights.tensors)
        snapshots.load_agents(self.combined_agents, agents)

    # -- training --------------------------------------------------------------------------

    def train(self) -> None:
        """Train and test the agents: from the state if there is one, else from the beginning.

        Raises ParameterError if there are phases, for each of which a trainer of its own is made.
        """
        if self.hyper_params.phases:
            raise ParameterError(
                f"phases: got {len(self.hyper_params.phases)}, which train() does not go through,"
                " expected none. Run the experiment with `ratchet run`, or run_experiment."
            )
        if self._stage is None:
            self.initial_state()
            self._pretrain_agents()
            self._have_agents_imitate()
        self._train_and_test()
        if self.settings.run_id is not None and not self.settings.test_run:
            self.save_checkpoint()

    def _train_and_test(self) -> None:
        """Run both loops, each in its context; from the beginning if there is no state yet."""
        if self._stage is None:
            self.initial_state()
        with ExitStack() as stack:
            self._build_train_context(stack)
            self._run_train_loop()
        with ExitStack() as stack:
            self._build_test_context(stack)
            self._run_test_loop()

    @attach_progress_bar(lambda self: self.num_train_iterations)
    def _run_train_loop(self, iteration_context: IterationContext) -> None:
        """Run all iterations that are left."""
        iteration_context.set_description("Training")
        iteration_context.step(self.iteration)
        period = self.settings.checkpoint_period
        while self.iteration < self.num_train_iterations:
            iteration = self.iteration
            stats = self._run_iteration(iteration)
            if stats is not None:
                self.log_stats(stats, iteration=iteration, stage=STAGE)
                iteration_context.set_postfix(stats)
            iteration_context.step()
            if period and self.settings.run_id is not None and self.iteration % period == 0:
                self.save_checkpoint()

    def run_iterations(self, start: int, stop: int) -> list[Metrics]:
        """Run iterations [start, stop) and return the metrics of those that were run.

        Raises StateError if the state is not after ``start`` iterations.
        """
        if self._stage is None or start != self.iteration:
            raise StateError(
                f"run_iterations: got start={start}, but the state is after {self.iteration}"
                " iterations, or not there yet. Call initial_state() or set the state first."
            )
        phase = self.phase
        with ExitStack() as stack:
            self._build_train_context(stack)
            return report_iterations(
                "Training" if phase is None else f"Training, phase {phase.name}",
                range(start, stop),
                self._run_iteration,
                total=self.num_train_iterations,
            )

    def _run_iteration(self, iteration: int) -> Metrics | None:
        """Run one iteration and count it; only count it once a callback has stopped the run."""
        last = iteration + 1 == self.num_train_iterations
        metrics = self.callbacks.iterate(
            iteration, lambda: self._do_iteration(iteration), last=last
        )
        self._iteration, self._stage = iteration + 1, STAGE
        return metrics

    # -- testing ---------------------------------------------------------------------------

    @attach_progress_bar(lambda self: self.num_test_iterations)
    def _run_test_loop(self, iteration_context: IterationContext) -> None:
        """Test the agents on every test set."""
        iteration_context.set_description("Testing")
        self.test_results = {}
        for name in self.scenario_instance.test_environments:
            result = self._run_test_stage(name, iteration_context if name == "test" else None)
            self.test_results[name] = result
            stage = "test" if name == "test" else f"test.{name}"
            self.log_stats(test_names(result.metrics), iteration=self.iteration, stage=stage)
            if self.samples_tests() and tests_both_ways(self.hyper_params):
                both = sampled_test(name)
                with set_interaction_type(InteractionType.RANDOM):
                    result = self.test_results[both] = self._run_test_stage(name, None)
                metrics = test_names(result.metrics)
                self.log_stats(metrics, iteration=self.iteration, stage=f"test.{both}")

    def run_test(self, dataset: str = "test") -> TestResult:
        """Test the agents as they are, without changing the state.

        On ``"test"``, ``"train"``, or the name of an extra test set.
        """
        with ExitStack() as stack:
            self._build_test_context(stack)
            return self._run_test_stage(dataset, None)

    def run_sampled_test(self, dataset: str = "test") -> TestResult:
        """Test as :meth:`run_test` does, by actions that are drawn."""
        with ExitStack() as stack:
            self._build_test_context(stack)
            stack.enter_context(set_interaction_type(InteractionType.RANDOM))
            return self._run_test_stage(dataset, None)

    def evaluate(self, dataset: str) -> TestResult:
        """Test as a part of training that no callback is told of."""
        with ExitStack() as stack:
            self._build_test_context(stack)
            return self._test_on(dataset, None)

    def _run_test_stage(
        self, dataset: str, iteration_context: IterationContext | None
    ) -> TestResult:
        with self.callbacks.stage("test", self.iteration) as metrics:
            result = self._test_on(dataset, iteration_context)
            metrics.update(result.metrics)
        return replace(result, metrics=metrics)

    @classmethod
    def supports_stages(cls) -> bool:
        """Return whether stages do what :meth:`train` does: unless a subclass has its own loops."""
        return all(getattr(cls, name) is getattr(StagedTensorDictTrainer, name) for name in _LOOPS)

    # -- keys ------------------------------------------------------------------------------

    @classmethod
    def stage_purposes(cls, hyper_params: HyperParameters) -> StagePurposes:
        """Return what each stage reads parameters for."""
        return TENSOR_STAGES

    @classmethod
    def stage_key_parameters(
        cls, hyper_params: HyperParameters, stage: str, agent_name: str | None = None
    ) -> dict[str, Any]:
        """Return the parameters that a stage reads; see :class:`StagedTrainer`."""
        agent = (agent_name or DEFAULT_AGENT) if stage == "pretrain" else None
        return stage_parameters(hyper_params, cls, cls.stage_purposes(hyper_params), stage, agent)

    # -- checkpoints -----------------------------------------------------------------------

    def save_state_to(self, folder: Path) -> None:
        """Write the state; that of the agents as they are, where a loop of its own keeps none."""
        if self._stage is None:
            self._stage = STAGE
        self.state.save(folder)

    @property
    def _iterations_done(self) -> int:
        return self.iteration
