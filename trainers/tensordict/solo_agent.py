"""Supervised training of every agent alone: how well it does without any conversation."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ClassVar

from ratchet.errors import ParameterError, StateError
from ratchet.seeding import derive_seed, seeded_globals
from trainers.progress import IterationContext, attach_progress_bar, report_iterations
from trainers.registry import register_trainer
from trainers.staged import Metrics, StagedTrainer, TestResult
from trainers.tensordict import checkpoints, snapshots
from trainers.tensordict.base import TensorDictTrainer
from trainers.tensordict.key_parameters import stage_parameters
from trainers.tensordict.optimizer import load_optimizer_tensors, optimizer_tensors
from trainers.tensordict.solo_learning import SoloLearner
from trainers.tensordict.state import State as TrainerState
from trainers.tensordict.testing import complete_table, environment_of

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters

STAGE = "train"


@register_trainer("solo_agent")
class SoloAgentTrainer(TensorDictTrainer, StagedTrainer):
    """Trains body and solo head of every agent to predict y; an iteration is an epoch."""

    trainer_type: ClassVar[str] = "solo_agent"
    State = TrainerState

    @property
    def solo_agents(self) -> list[str]:
        """The agents that can be trained alone.

        Raises
        ------
        ParameterError
            If there is none.
        """
        agents = self.scenario_instance.agents
        names = [name for name in self.agent_names if agents[name].solo_head is not None]
        if not names:
            raise ParameterError(
                f"solo_agent: none of {self.agent_names} has a solo head, expected one. Build the"
                " scenario with trainer_type='solo_agent', with agents that are not random."
            )
        return names

    @property
    def learner(self) -> SoloLearner:
        """What trains the agents; made when it is first needed."""
        made: SoloLearner | None = self.__dict__.get("_learner")
        if made is None:
            made = SoloLearner(
                self.combined_agents, self.solo_agents, self.hyper_params, stage=STAGE
            )
            self.__dict__["_learner"] = made
            self._untrained = self._take_state(0, "initial_state")
        return made

    @property
    def num_train_iterations(self) -> int:
        """The number of epochs; one in a test run."""
        epochs: int = self.hyper_params.solo_agent.num_epochs
        return min(epochs, 1) if self.settings.test_run else epochs

    @property
    def iteration(self) -> int:
        """The number of finished epochs."""
        return int(self.__dict__.get("_iteration", 0))

    @property
    def state(self) -> TrainerState:
        """What the next epoch continues from; a copy.

        Raises
        ------
        StateError
            Before :meth:`initial_state` or :meth:`train`.
        """
        stage = self.__dict__.get("_stage")
        if stage is None:
            raise StateError("solo_agent: there is no state yet. Call initial_state() or train().")
        return self._take_state(self.iteration, stage)

    @state.setter
    def state(self, state: TrainerState) -> None:
        learner, agents = self.learner, self.combined_agents
        snapshots.load_agents(agents, state.agents)
        snapshots.load_normalization(agents, state.normalization)
        load_optimizer_tensors(learner.optimizer, state.optimizer, learner.params())
        self._iteration, self._stage = state.iteration, state.stage

    def _take_state(self, iteration: int, stage: str) -> TrainerState:
        learner, agents = self.learner, self.combined_agents
        names = {id(param): name for name, param in learner.params().items()}
        return TrainerState(
            iteration=iteration,
            stage=stage,
            agents=snapshots.take_agents(agents),
            normalization=snapshots.take_normalization(agents),
            optimizer=optimizer_tensors(learner.optimizer, names),
        )

    def initial_state(self) -> TrainerState:
        """Go back to the untrained agents, and give that state."""
        _ = self.learner
        self.state = self._untrained
        return self.state

    def train(self) -> None:
        """Train and test the agents: from the state if there is one, else from the beginning."""
        if self.__dict__.get("_stage") is None:
            self.initial_state()
        with ExitStack() as stack:
            self._build_train_context(stack)
            self._run_train_loop()
        with ExitStack() as stack:
            self._build_test_context(stack)
            self._run_test_loop()
        if self.settings.run_id is not None and not self.settings.test_run:
            self.save_checkpoint()

    @attach_progress_bar(lambda self: self.num_train_iterations)
    def _run_train_loop(self, iteration_context: IterationContext) -> None:
        """Run all epochs that are left."""
        iteration_context.set_description("Training alone")
        iteration_context.step(self.iteration)
        while self.iteration < self.num_train_iterations:
            epoch = self.iteration
            stats = self._run_iteration(epoch)
            self.log_stats(stats, iteration=epoch, stage=STAGE)
            iteration_context.set_postfix(stats)
            iteration_context.step()

    @attach_progress_bar(lambda self: len(self.scenario_instance.test_environments))
    def _run_test_loop(self, iteration_context: IterationContext) -> None:
        """Test the agents on every test set."""
        iteration_context.set_description("Testing alone")
        self.test_results = {}
        for name in self.scenario_instance.test_environments:
            result = self._test_on(name)
            self.test_results[name] = result
            stage = "test" if name == "test" else f"test.{name}"
            self.log_stats(result.metrics, iteration=self.iteration, stage=stage)
            iteration_context.step()

    def run_iterations(self, start: int, stop: int) -> list[Metrics]:
        """Run epochs [start, stop) and give their metrics."""
        if self.__dict__.get("_stage") is None or start != self.iteration:
            raise StateError(
                f"run_iterations: got start={start}, but the state is after {self.iteration}"
                " epochs, or not there yet. Call initial_state() or set the state first."
            )
        with ExitStack() as stack:
            self._build_train_context(stack)
            return report_iterations("Training alone", range(start, stop), self._run_iteration)

    def _run_iteration(self, epoch: int) -> Metrics:
        """Train one epoch, and predict the test set."""
        with seeded_globals(derive_seed(self.hyper_params.seed, STAGE, epoch, "globals")):
            batches = 1 if self.settings.test_run else None
            stats = self.learner.run_epoch(epoch, self.train_environment, batches)
            stats |= self.learner.predict(self.test_environment)[0]
        self._iteration, self._stage = epoch + 1, STAGE
        return stats

    def run_test(self, dataset: str = "test") -> TestResult:
        """Predict a whole dataset, ``"test"`` by default."""
        with ExitStack() as stack:
            self._build_test_context(stack)
            return self._test_on(dataset)

    def _test_on(self, dataset: str) -> TestResult:
        environment = environment_of(self.scenario_instance, dataset)
        _, table = self.learner.predict(environment)
        verifiers = [n for n in self.protocol_handler.verifier_names if n in self.solo_agents]
        metrics = complete_table(table, environment.dataset, verifiers or self.solo_agents)
        for name in self.solo_agents:
            right = [d == y for d, y in zip(table[f"decision.{name}"], table["y"], strict=True)]
            metrics[f"{name}.accuracy"] = sum(right) / len(right)
        return TestResult(metrics, table)

    def save_checkpoint(self, log: bool = True) -> None:
        """Write the state into the run's checkpoint folder."""
        metadata = {"trainer": self.hyper_params.trainer_name, "iteration": self.iteration}
        checkpoints.write_checkpoint(
            self.checkpoint_base_dir, self.state, self.hyper_params, metadata
        )

    @classmethod
    def stage_key_parameters(
        cls, hyper_params: HyperParameters, stage: str, agent_name: str | None = None
    ) -> dict[str, Any]:
        """Give the parameters that a stage reads; an epoch does not depend on how many follow."""
        data = stage_parameters(hyper_params, cls, stage, agent_name, reads_num_iterations=False)
        if stage == "train":
            data["solo_agent"].pop("num_epochs")
        return data
