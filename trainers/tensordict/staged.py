"""Training of local networks in stages: loops, state and checkpoints around one iteration.

Subclasses define an iteration, a test and the state. ``train`` and stages call only those, so that
they are equivalent for any split into stages.
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
from trainers.callbacks.callback_list import CallbackTrainer
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
"""Stage → purposes for which it reads parameters."""
_LOOPS = (
    *("train", "_train_and_test", "_run_train_loop", "_run_test_loop"),
    *("_pretrain_agents", "_imitate_demonstrations"),
)


class StagedTensorDictTrainer(CallbackTrainer, TensorDictTrainer, StagedTrainer):
    """Base of trainers of local networks whose training is a sequence of iterations."""

    traits = replace(TensorDictTrainer.traits, instead_of_callbacks=None)
    State: ClassVar[type[Any]] = TrainerState
    test_results: dict[str, TestResult]
    """Results of the last :meth:`_run_test_loop`, by dataset."""
    _iteration: int = 0
    _stage: str | None = None

    # -- for subclasses to implement -------------------------------------------------------

    @abstractmethod
    def _take_state(self, iteration: int, stage: str) -> Any:  # noqa: ANN401 -- of the State class
        """Copy everything that the next iteration depends on."""

    @abstractmethod
    def _load_state(self, state: Any) -> None:  # noqa: ANN401
        """Restore the result of :meth:`_take_state`."""

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
        """Train each agent's body on its own, supervised, and load it into the state."""
        if self._stage is None:
            self.initial_state()
        for name in self.pretrained_agents:
            result = self.pretrain(name)
            for epoch, metrics in enumerate(result.metrics):
                self.log_stats(metrics, iteration=epoch, stage=f"pretrain.{name}")
            self.load_pretrained(name, result)

    def _imitate_demonstrations(self) -> None:
        """Train imitating agents on their demonstrations, and load the results into the state."""
        names = self.hyper_params.imitation.agents
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
        """A copy of the state that the next iteration continues from.

        Raises StateError before :meth:`initial_state` or :meth:`train`.
        """
        if self._stage is None:
            raise StateError(
                f"{type(self).__name__}: no state yet. Call initial_state() or train(),"
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

    def take_weights(self) -> CallbackState:
        """Copy all agents' parameters and buffers."""
        agents = snapshots.take_agents(self.combined_agents)
        return CallbackState(tensors=snapshots.flatten_agents(agents))

    def put_weights(self, weights: CallbackState) -> None:
        """Restore the result of :meth:`take_weights`."""
        agents = snapshots.unflatten_agents(weights.tensors)
        snapshots.load_agents(self.combined_agents, agents)

    # -- training --------------------------------------------------------------------------

    def train(self) -> None:
        """Train and test the agents, from the current state if there is one.

        Raises ParameterError if there are phases, each of which needs a separate trainer.
        """
        if self.hyper_params.phases:
            raise ParameterError(
                f"phases: got {len(self.hyper_params.phases)}, which train() does not support,"
                " expected none. Run the experiment with `ratchet run`, or run_experiment."
            )
        if self._stage is None:
            self.initial_state()
            self._pretrain_agents()
            self._imitate_demonstrations()
        self._train_and_test()
        if self.settings.run_id is not None and not self.settings.test_run:
            self.save_checkpoint()

    def _train_and_test(self) -> None:
        """Run both loops, each in its context; from the initial state if there is none."""
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
        """Run all remaining iterations."""
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
        """Run iterations [start, stop) and return the metrics of those not skipped.

        Raises StateError if the state is not after ``start`` iterations.
        """
        if self._stage is None or start != self.iteration:
            raise StateError(
                f"run_iterations: got start={start}, but the state is after {self.iteration}"
                " iterations, or missing. Call initial_state() or set the state first."
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
        """Run one iteration and count it; skip it once a callback has stopped the run."""
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
            if self.traits.samples_tests and tests_both_ways(self.hyper_params):
                both = sampled_test(name)
                with set_interaction_type(InteractionType.RANDOM):
                    result = self.test_results[both] = self._run_test_stage(name, None)
                metrics = test_names(result.metrics)
                self.log_stats(metrics, iteration=self.iteration, stage=f"test.{both}")

    def run_test(self, dataset: str = "test") -> TestResult:
        """Test the current agents, without changing the state.

        The dataset is ``"test"``, ``"train"``, or the name of an extra test set.
        """
        with ExitStack() as stack:
            self._build_test_context(stack)
            return self._run_test_stage(dataset, None)

    def run_sampled_test(self, dataset: str = "test") -> TestResult:
        """Test like :meth:`run_test`, with sampled actions."""
        with ExitStack() as stack:
            self._build_test_context(stack)
            stack.enter_context(set_interaction_type(InteractionType.RANDOM))
            return self._run_test_stage(dataset, None)

    def evaluate(self, dataset: str) -> TestResult:
        """Test within training, without calling callbacks."""
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
        """Return whether stages equal :meth:`train`, i.e. no subclass overrides the loops."""
        return all(getattr(cls, name) is getattr(StagedTensorDictTrainer, name) for name in _LOOPS)

    # -- keys ------------------------------------------------------------------------------

    @classmethod
    def stage_purposes(cls, hyper_params: HyperParameters) -> StagePurposes:
        """Return the purposes for which each stage reads parameters."""
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
        """Write the state; for custom loops without one, that of the current agents."""
        if self._stage is None:
            self._stage = STAGE
        self.state.save(folder)

    @property
    def _iterations_done(self) -> int:
        return self.iteration
