"""Supervised training of every agent on its own, as a baseline without messages."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from ratchet.errors import ParameterError
from ratchet.parameters.purposes import Purpose
from ratchet.parameters.test_groups import test_groups
from ratchet.seeding import derive_seed, seeded_globals
from trainers.named import register_trainer
from trainers.progress import IterationContext
from trainers.results import Metrics, TestResult
from trainers.stage_parameters import StagePurposes
from trainers.staged import STAGE, StagedTrainer
from trainers.tensordict.base import TensorDictTrainer
from trainers.tensordict.optimization.optimizer import load_optimizer_tensors, optimizer_tensors
from trainers.tensordict.solo.learning import SoloLearner
from trainers.tensordict.states import snapshots
from trainers.tensordict.states.loaded_agents import load_earlier_agents
from trainers.tensordict.states.state import State as TrainerState
from trainers.tensordict.testing import complete_table, environment_for

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters


@register_trainer("solo_agent")
class SoloAgentTrainer(TensorDictTrainer, StagedTrainer):
    """Trains body and solo head of every agent to predict y; an iteration is an epoch."""

    trainer_type: ClassVar[str] = "solo_agent"
    traits = replace(TensorDictTrainer.traits, instead_of_callbacks=None)
    State = TrainerState

    @property
    def solo_agents(self) -> list[str]:
        """The agents that can be trained on their own; ParameterError if none can."""
        agents = self.scenario_instance.agents
        names = [name for name in self.agent_names if agents[name].solo_head is not None]
        if not names:
            raise ParameterError(
                f"solo_agent: none of {self.agent_names} has a solo head. Build the"
                " scenario with trainer_type='solo_agent', with agents that are not random."
            )
        return names

    @property
    def learner(self) -> SoloLearner:
        """Trains the agents; created on first use."""
        solo_learner: SoloLearner | None = self.__dict__.get("_learner")
        if solo_learner is None:
            solo_learner = SoloLearner(
                self.combined_agents, self.solo_agents, self.hyper_params, stage=STAGE
            )
            self.__dict__["_learner"] = solo_learner
            self._untrained = self._take_state(0, "initial_state")
        return solo_learner

    @classmethod
    def count_train_iterations(cls, hyper_params: HyperParameters) -> int:
        """Return the number of epochs."""
        return int(hyper_params.solo_agent.num_epochs)

    def _load_state(self, state: TrainerState) -> None:
        learner, agents = self.learner, self.combined_agents
        snapshots.load_agents(agents, state.agents)
        snapshots.load_normalization(agents, state.normalization)
        load_optimizer_tensors(learner.optimizer, state.optimizer, learner.params())

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
        """Restore the untrained agents, and return that state."""
        _ = self.learner
        self.state = self._untrained
        load_earlier_agents(self.combined_agents, self.hyper_params.agents, self.state_finder)
        state: TrainerState = self.state
        return state

    @property
    def num_test_iterations(self) -> int:
        """One step of progress: the complete test set."""
        return 1

    def _do_iteration(self, epoch: int) -> Metrics:
        """Train one epoch, and predict the test set."""
        with seeded_globals(derive_seed(self.hyper_params.seed, STAGE, epoch, "globals")):
            batches = 1 if self.settings.test_run else None
            stats = self.learner.run_epoch(
                epoch, self.train_environment, batches, self.callbacks.after_loss
            )
            stats |= self.learner.predict(self.test_environment)[0]
        return stats

    def _test_on(self, dataset: str, iteration_context: IterationContext | None) -> TestResult:
        environment = environment_for(self.scenario_instance, dataset)
        _, table = self.learner.predict(environment)
        verifiers = [n for n in self.protocol_handler.verifier_names if n in self.solo_agents]
        metrics = complete_table(
            table,
            environment.dataset,
            verifiers or self.solo_agents,
            test_groups(self.hyper_params),
        )
        for name in self.solo_agents:
            right = [d == y for d, y in zip(table[f"decision.{name}"], table["y"], strict=True)]
            metrics[f"{name}.accuracy"] = sum(right) / len(right)
        if iteration_context is not None:
            iteration_context.step()
        return TestResult(metrics, table)

    @classmethod
    def stage_purposes(cls, hyper_params: HyperParameters) -> StagePurposes:
        """Return the purposes of each stage; an epoch does not depend on the number of epochs."""
        stages = super().stage_purposes(hyper_params)
        return stages | {STAGE: stages[STAGE] | {Purpose.LEARNING_ALONE}}
