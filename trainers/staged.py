"""Training as a sequence of iterations, which can be split anywhere into stored, resumable stages.

Subclasses define an iteration, a test and the state. ``train`` and the tasks that run stages call
only those, so that they are equivalent for any split into stages. Imports no tensor library.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from ratchet.errors import ParameterError, StateError
from ratchet.parameters.agents import DEFAULT_AGENT
from ratchet.seeding import derive_seed, seeded_globals
from trainers.base import Trainer, deterministic_kernels, enter_contexts, torch_threads
from trainers.callbacks.callback_list import CallbackList
from trainers.custom_state import is_custom_method, put_attributes, take_attributes
from trainers.named import NamedTrainer, TrainerTraits
from trainers.progress import IterationContext, attach_progress_bar, report_iterations
from trainers.results import FolderOf, Metrics, PretrainResult, TestResult, with_test_prefix
from trainers.sampled_tests import dataset_of, test_names, tests_both_ways
from trainers.stage_parameters import NETWORK_STAGES, StagePurposes, stage_parameters

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from ratchet.parameters.curriculum import Phase
    from ratchet.parameters.hyper_parameters import HyperParameters
    from trainers.callbacks.base import CallbackState

STAGE = "train"
_LOOPS = ("train", "_train_and_test", "_run_train_loop", "_run_test_loop", "_pretrain_agents")


class StagedTrainer(Trainer):
    """Base of trainers whose training can be split anywhere between iterations.

    The result is the same bit for bit, regardless of the split and of whether the state is
    saved and loaded at it.
    """

    traits = TrainerTraits(instead_of_callbacks=None)
    phase: Phase | None = None
    """The phase of the experiment that this trainer runs; the parameters are the phase's."""
    test_results: dict[str, TestResult]
    """Results of the last :meth:`_run_test_loop`, by dataset."""
    iteration: int = 0
    """The number of finished training iterations."""
    _stage: str | None = None

    # -- for subclasses to implement -------------------------------------------------------

    @abstractmethod
    def initial_state(self) -> Any:  # noqa: ANN401 -- each family has its own state
        """Create the state before any training, and continue from it."""

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
    def num_test_iterations(self) -> int:
        """The number of steps of the test's progress: by default of datapoints; 1 in a test run."""
        return 1 if self.settings.test_run else len(self.scenario_instance.test_dataset)

    def take_weights(self) -> CallbackState:
        """Copy the current weights, for callbacks that store some."""
        raise NotImplementedError(f"{type(self).__name__} copies no weights.")

    def put_weights(self, weights: CallbackState) -> None:
        """Restore the result of :meth:`take_weights`."""
        raise NotImplementedError(f"{type(self).__name__} copies no weights; got {weights}.")

    # -- before training -------------------------------------------------------------------

    @classmethod
    def count_train_iterations(cls, hyper_params: HyperParameters) -> int:
        """Return the number of training iterations, before any component is built."""
        return int(hyper_params.rl.num_iterations)

    @property
    def first_iteration(self) -> int:
        """The iteration at which schedules start: 0, or the phase's first."""
        return 0 if self.phase is None else self.phase.start

    @property
    def num_train_iterations(self) -> int:
        """The number of iterations, with those of earlier phases; at most one in a test run."""
        iterations = self.count_train_iterations(self.hyper_params)
        return self.first_iteration + (min(iterations, 1) if self.settings.test_run else iterations)

    def take_over(
        self,
        folder: Path,
        pool: Mapping[tuple[str, int], Path],
        fresh: Mapping[str, Path],
    ) -> None:
        """Start with the agents of a state saved by a trainer with other parameters.

        ``pool``: agent and iteration → the folder of a state with an earlier version of it;
        ``fresh``: agent → the folder of the state whose weights it starts with instead.
        """
        raise NotImplementedError(f"{type(self).__name__} does not support phases; got {folder}.")

    @classmethod
    def pretrained_agent_names(cls, hyper_params: HyperParameters) -> list[str]:
        """Return the agents to :meth:`pretrain`, before any component is built."""
        return []

    def pretrain(self, agent_name: str) -> PretrainResult:
        """Train an agent's body on its own from the initial state; the state is not changed."""
        raise NotImplementedError(f"{type(self).__name__} does not pretrain; got {agent_name!r}.")

    def load_pretrained(self, agent_name: str, result: PretrainResult) -> None:
        """Load the result of :meth:`pretrain` into the state."""
        raise NotImplementedError(f"{type(self).__name__} does not pretrain; got {agent_name!r}.")

    def imitate(self, agent_name: str, files: Sequence[Path] = ()) -> PretrainResult:
        """Train an agent to imitate its demonstrator, from the current state, which is not changed.

        ``files`` are the rollouts of a run, if it imitates those.
        """
        raise NotImplementedError(f"{type(self).__name__} does not imitate; got {agent_name!r}.")

    def load_imitated(self, agent_name: str, result: PretrainResult) -> None:
        """Load the result of :meth:`imitate` into the state."""
        raise NotImplementedError(f"{type(self).__name__} does not imitate; got {agent_name!r}.")

    def _pretrain_agents(self) -> None:
        """Pretrain each agent's body, then let agents imitate; load the results into the state."""
        if self._stage is None:
            self.initial_state()
        for name in self.pretrained_agent_names(self.hyper_params):
            result = self.pretrain(name)
            _log_epochs(self, f"pretrain.{name}", result)
            self.load_pretrained(name, result)
        learned = {name: self.imitate(name) for name in self.hyper_params.imitation.agents}
        for name, result in learned.items():
            _log_epochs(self, f"imitate.{name}", result)
            self.load_imitated(name, result)

    # -- state -----------------------------------------------------------------------------

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
        state = self._take_state(self.iteration, self._stage)
        owner = self._attribute_owner
        stores_itself = is_custom_method(type(owner), "take_state")
        state.attributes = take_attributes(owner, strict=not stores_itself)
        if self.callbacks:
            state.callbacks = self.callbacks.take_values()
            state.callback_tensors = self.callbacks.take_tensors()
        return state

    @state.setter
    def state(self, state: Any) -> None:  # noqa: ANN401
        self._load_state(state)
        put_attributes(self._attribute_owner, state.attributes)
        if self.callbacks:
            self.callbacks.load(state.callbacks, state.callback_tensors)
        self.iteration, self._stage = state.iteration, state.stage

    @property
    def _attribute_owner(self) -> NamedTrainer:
        """The object whose assigned attributes are part of the state."""
        return self

    def save_state(self, folder: Path, key: str) -> None:
        """Write the state into a folder, as the result of the stage with the key.

        A trainer with large states may omit content stored by earlier stages, and record that
        the rest is in this folder.
        """
        self.state.save(folder)

    def load_state(self, folder: Path, key: str, folder_of: FolderOf) -> None:
        """Continue from the state that :meth:`save_state` wrote.

        ``folder_of`` finds the states of earlier stages, to which this one may refer.
        """
        self.state = type(self).State.load(folder)

    def save_state_to(self, folder: Path) -> None:
        """Write the state; for custom loops without one, that of the current agents."""
        if self._stage is None:
            self._stage = STAGE
        self.state.save(folder)

    @property
    def _iterations_done(self) -> int:
        return self.iteration

    # -- callbacks -------------------------------------------------------------------------

    @cached_property
    def callbacks(self) -> CallbackList:
        """The callbacks of the experiment."""
        return CallbackList(self)

    @property
    def has_stopped(self) -> bool:
        """Whether a callback has ended the training: the remaining iterations are skipped."""
        return self.callbacks.has_stopped

    # -- training --------------------------------------------------------------------------

    def train(self) -> None:
        """Train and test the agents, from the current state if any.

        Raises ParameterError if there are phases, each of which needs a separate trainer.
        """
        if self.hyper_params.phases:
            raise ParameterError(
                f"phases: got {len(self.hyper_params.phases)}, which train() does not support,"
                " expected none. Run the experiment with `ratchet run`, or run_experiment."
            )
        if self._stage is None:
            self._pretrain_agents()
        self._train_and_test()
        if self.settings.run_id is not None and not self.settings.test_run:
            self.save_checkpoint()

    def _train_and_test(self) -> None:
        """Run both loops, each in its context; without a state, from the initial one."""
        if self._stage is None:
            self.initial_state()
        with ExitStack() as stack:
            self._build_train_context(stack)
            self._run_train_loop()
        with ExitStack() as stack:
            self._build_test_context(stack)
            self._run_test_loop()

    def _build_train_context(self, stack: ExitStack) -> list[AbstractContextManager[Any]]:
        """Enter and return training's contexts: threads, kernels and seeds."""
        seed = derive_seed(self.hyper_params.seed, STAGE)
        threads = torch_threads(self.settings.num_threads)
        kernels = deterministic_kernels(self.settings)
        return enter_contexts(stack, threads, kernels, seeded_globals(seed))

    def _build_test_context(self, stack: ExitStack) -> list[AbstractContextManager[Any]]:
        """Enter and return a test's contexts: threads, kernels and seeds, without gradients."""
        import torch

        seed = derive_seed(self.hyper_params.seed, "test")
        threads = torch_threads(self.settings.num_threads)
        kernels = deterministic_kernels(self.settings)
        return enter_contexts(stack, threads, kernels, seeded_globals(seed), torch.no_grad())

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
        self.iteration, self._stage = iteration + 1, STAGE
        return metrics

    def sample_rollouts(self, iteration: int) -> TensorDictBase:
        """Collect an iteration's rollouts as training does, without learning from them.

        The state, which must be the iteration's initial one, stays unchanged.
        """
        raise NotImplementedError(f"{type(self).__name__} samples no rollouts; got {iteration}.")

    # -- testing ---------------------------------------------------------------------------

    @attach_progress_bar(lambda self: self.num_test_iterations)
    def _run_test_loop(self, iteration_context: IterationContext) -> None:
        """Test the agents on every test set."""
        iteration_context.set_description("Testing")
        self.test_results = {}
        both = self.traits.samples_tests and tests_both_ways(self.hyper_params)
        for name in test_names(list(self.scenario_instance.test_environments), both=both):
            dataset, sampled = dataset_of(name)
            with _sampled_actions(is_on=sampled):
                context = iteration_context if name == "test" else None
                result = self.test_results[name] = self._run_test_stage(dataset, context)
            stage = "test" if name == "test" else f"test.{name}"
            self.log_stats(with_test_prefix(result.metrics), iteration=self.iteration, stage=stage)

    def run_test(self, dataset: str = "test", *, sampled: bool = False) -> TestResult:
        """Test the current agents, without changing the state.

        The dataset is ``"test"``, ``"train"``, or the name of an extra test set. ``sampled``:
        whether actions are sampled regardless of the parameters.
        """
        with ExitStack() as stack:
            self._build_test_context(stack)
            stack.enter_context(_sampled_actions(is_on=sampled))
            return self._run_test_stage(dataset, None)

    def evaluate(self, dataset: str) -> TestResult:
        """Test within training, without calling callbacks."""
        with ExitStack() as stack:
            self._build_test_context(stack)
            return self._test_on(dataset, None)

    def _run_test_stage(
        self, dataset: str, iteration_context: IterationContext | None
    ) -> TestResult:
        with self.callbacks.stage("test", self.iteration, dataset) as metrics:
            result = self._test_on(dataset, iteration_context)
            metrics.update(result.metrics)
        return replace(result, metrics=metrics)

    # -- stages ----------------------------------------------------------------------------

    @classmethod
    def stage_purposes(cls, hyper_params: HyperParameters) -> StagePurposes:
        """Return the purposes for which each stage reads parameters; by default a network's."""
        return NETWORK_STAGES

    @classmethod
    def stage_key_parameters(
        cls, hyper_params: HyperParameters, stage: str, agent_name: str | None = None
    ) -> dict[str, Any]:
        """Return the parameters that a stage reads, as plain data.

        Stages are ``"initial_state"``, ``"pretrain"`` (of an agent), ``"imitate"``, ``"train"`` and
        ``"test"``.
        """
        agent = (agent_name or DEFAULT_AGENT) if stage == "pretrain" else None
        return stage_parameters(hyper_params, cls, cls.stage_purposes(hyper_params), stage, agent)


def runs_in_stages(trainer: type[Trainer]) -> TypeGuard[type[StagedTrainer]]:
    """Return whether stages equal a trainer's ``train``, i.e. no subclass overrides the loops.

    Otherwise the trainer runs as one stage.
    """
    if not issubclass(trainer, StagedTrainer):
        return False
    return all(getattr(trainer, name) is getattr(StagedTrainer, name) for name in _LOOPS)


def _log_epochs(trainer: Trainer, stage: str, result: PretrainResult) -> None:
    for iteration, metrics in enumerate(result.metrics):
        trainer.log_stats(metrics, iteration=iteration, stage=stage)


def _sampled_actions(*, is_on: bool) -> AbstractContextManager[object]:
    """Return a context in which networks sample their actions, if it is on."""
    if not is_on:
        return nullcontext()
    from tensordict.nn.probabilistic import InteractionType, set_interaction_type

    context: AbstractContextManager[object] = set_interaction_type(InteractionType.RANDOM)
    return context
