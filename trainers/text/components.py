"""Components of a text trainer, and its state: the current models and the position in the loop.

A layer between ``Trainer`` and ``PureTextRlTrainer``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ratchet.errors import ParameterError, StateError
from ratchet.scenarios.pure_text.agents.group_state import PureTextSharedModelGroupState
from trainers.base import Trainer
from trainers.callbacks.base import CallbackState
from trainers.callbacks.callback_list import CallbackList
from trainers.checkpointing import CheckpointFiles
from trainers.custom_state import is_custom_method, put_attributes, take_attributes
from trainers.named import TrainerTraits
from trainers.text.state import AgentState, TrainLoopStage
from trainers.text.state import State as TrainerState

if TYPE_CHECKING:
    from ratchet.parameters.curriculum import Phase
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.scenarios.pure_text.agents.shared_model_group import PureTextSharedModelGroup
    from ratchet.scenarios.pure_text.agents.whole_agent import PureTextWholeAgent
    from ratchet.scenarios.pure_text.base import TextScenarioInstance
    from ratchet.scenarios.pure_text.environment import PureTextEnvironment


class _TextCheckpointFiles(CheckpointFiles):
    """Reads states with the attributes of custom trainers, which are stored next to them."""

    def continue_from(self, content: Mapping[str, Any], folder: Path) -> None:
        """Continue from the state in a folder."""
        self.trainer.state = type(self.trainer).State.load(folder)


class TextTrainerComponents(Trainer):
    """A trainer of chat models with components and state, but without a loop."""

    renamed_attributes: ClassVar[Mapping[str, str]] = {
        "combined_agent": "the chat models are self.text_agents[NAME]",
    }
    trainer_type = "pure_text"
    traits = TrainerTraits(plays_text=True, supports_phases=True, instead_of_callbacks=None)
    State = TrainerState
    scenario_instance: TextScenarioInstance
    phase: Phase | None = None
    """The phase of the experiment that this trainer runs; the parameters are the phase's."""

    def __init__(
        self,
        hyper_params: HyperParameters,
        scenario_instance: TextScenarioInstance,
        settings: ExperimentSettings,
    ) -> None:
        super().__init__(hyper_params, scenario_instance, settings)
        if not scenario_instance.shared_model_groups:
            raise ParameterError(
                f"{type(self).__name__}: the scenario instance has no shared model groups, expected"
                " those of a text scenario. Build it with build_scenario_instance."
            )
        self.checkpoint_files = _TextCheckpointFiles(self)
        self._initial_groups = {n: g.state for n, g in self.shared_model_groups.items()}
        self._iteration = 0
        self._stage: TrainLoopStage | None = None

    @classmethod
    def supports_stages(cls) -> bool:
        """Return whether stages equal :meth:`train`, i.e. no subclass overrides the loop."""
        return not is_custom_method(cls, "train")

    # -- components ------------------------------------------------------------------------

    @property
    def shared_model_groups(self) -> dict[str, PureTextSharedModelGroup]:
        """The groups of agents that share a model, by name."""
        return self.scenario_instance.shared_model_groups

    @property
    def text_agents(self) -> dict[str, PureTextWholeAgent]:
        """The chat models by the names of their agents."""
        return {name: agent.whole for name, agent in self.scenario_instance.agents.items()}

    @property
    def train_environment(self) -> PureTextEnvironment:
        """The environment on the training set."""
        return self.scenario_instance.train_environment

    @property
    def test_environment(self) -> PureTextEnvironment:
        """The environment on the test set."""
        return self.scenario_instance.test_environment

    def is_learning(self, agent_name: str) -> bool:
        """Return whether an agent learns in this iteration: not frozen, and its schedule is on."""
        agent = self.hyper_params.agents[agent_name]
        iteration = self._iteration - self.first_iteration
        return not agent.freeze_agent and agent.update_schedule.is_on(iteration, agent_name)

    @property
    def learning_model_groups(self) -> dict[str, list[str]]:
        """The groups that learn in this iteration, with their learning agents.

        The others need no job; they create none if requested, and exclude agents whose schedule is
        off.
        """
        learning = {
            name: [agent for agent in group.agent_names if self.is_learning(agent)]
            for name, group in self.shared_model_groups.items()
        }
        return {name: agents for name, agents in learning.items() if agents}

    def _get_fine_tune_job_name(self, shared_model_group: PureTextSharedModelGroup) -> str:
        """Return a unique ``job_name`` for a group's jobs; runs share equal jobs."""
        return f"{shared_model_group.name}-{self._iteration}"

    def _set_learning_agents(self) -> None:
        """Set the agents from which each group learns in this iteration."""
        for group in self.shared_model_groups.values():
            group.learning_agents = frozenset(filter(self.is_learning, group.agent_names))

    # -- state -----------------------------------------------------------------------------

    @property
    def has_state(self) -> bool:
        """Whether the trainer has a state: after :meth:`initial_state`, or once one was set."""
        return self._stage is not None

    def initial_state(self) -> TrainerState:
        """Create the state before any training, and continue from it."""
        for name, group in self.shared_model_groups.items():
            group.state = self._initial_groups[name]
        self._iteration, self._stage = 0, "sample_rollouts"
        self.callbacks.load({})
        return self.state

    @property
    def state(self) -> TrainerState:
        """The current state; a value.

        Raises StateError before :meth:`initial_state` or :meth:`train`.
        """
        if self._stage is None:
            raise StateError(
                f"{type(self).__name__}: no state yet. Call initial_state() or train(),"
                " or set a saved one."
            )
        groups = self.shared_model_groups
        agents = {
            agent: AgentState(name, group.current_model_name)
            for name, group in groups.items()
            for agent in group.agent_names
        }
        return TrainerState(
            iteration=self._iteration,
            agents={name: agents[name] for name in self.agent_names},
            train_loop_stage=self._stage,
            shared_model_groups={name: group.state for name, group in groups.items()},
            callbacks=self._take_callbacks(),
            attributes=take_attributes(self),
        )

    @state.setter
    def state(self, state: TrainerState) -> None:
        groups = self.shared_model_groups
        if state.shared_model_groups.keys() != groups.keys():
            raise StateError(
                f"state: got the shared model groups {sorted(state.shared_model_groups)}, expected"
                f" {sorted(groups)}. It belongs to other agents; use those, or train from scratch."
            )
        for name, group in groups.items():
            group.state = state.shared_model_groups[name]
        self._iteration, self._stage = state.iteration, state.train_loop_stage
        put_attributes(self, state.attributes)
        self.load_callbacks(state)

    def save_state_to(self, folder: Path) -> None:
        """Write the state; for custom loops without one, that of the current models."""
        if self._stage is None:
            self._stage = "done"
        self.state.save(folder)

    @property
    def _iterations_done(self) -> int:
        return self._iteration

    # -- phases ----------------------------------------------------------------------------

    @property
    def first_iteration(self) -> int:
        """The iteration at which schedules start: 0, or the phase's first."""
        return 0 if self.phase is None else self.phase.start

    def begin_phase(self) -> None:
        """Start the phase from the state that the previous one ended with.

        Groups of ``fresh`` agents have their first model again, which the next job starts from;
        callbacks start over, except those that span phases.
        """
        assert self.phase is not None  # otherwise there is nothing to start
        for group in self.shared_model_groups.values():
            if not set(group.agent_names).isdisjoint(self.phase.fresh):
                first = group.base_model_name
                group.state = replace(
                    group.state, current_model_name=first, called_as=None, token_training=None
                )
        self.callbacks.load_spanning(self.callbacks.take_values(), {})

    def act_as(self, agent_name: str, earlier: TrainerState) -> None:
        """Let an agent act with its model of an earlier state; do not store the state after it."""
        agent = earlier.agents[agent_name]
        group = self.shared_model_groups[agent.shared_model_group]
        group.state = replace(group.state, current_model_name=agent.model_name, called_as=None)

    # -- callbacks -------------------------------------------------------------------------

    @cached_property
    def callbacks(self) -> CallbackList:
        """The callbacks of the experiment."""
        return CallbackList(self)

    @property
    def has_stopped(self) -> bool:
        """Whether a callback has ended the training."""
        return self.callbacks.has_stopped

    def load_callbacks(self, state: TrainerState) -> None:
        """Restore only the callbacks' states."""
        if self.callbacks:
            self.callbacks.load(state.callbacks)

    def _take_callbacks(self) -> dict[str, Any]:
        if not self.callbacks:
            return {}
        for name in self.callbacks.take_tensors():
            raise StateError(
                f"callback {name!r}: its state has tensors, expected plain values only, since the"
                " agents are chat models."
            )
        return self.callbacks.take_values()

    def take_weights(self) -> CallbackState:
        """Copy the state of each shared model group, which names the current model."""
        groups = self.shared_model_groups
        return CallbackState({name: group.state.to_dict() for name, group in groups.items()})

    def put_weights(self, weights: CallbackState) -> None:
        """Restore the result of :meth:`take_weights`."""
        for name, group in self.shared_model_groups.items():
            group.state = PureTextSharedModelGroupState.from_dict(weights.values[name])

    # -- iterations ------------------------------------------------------------------------

    def _check_iteration(self, iteration: int) -> None:
        if self._stage is None or iteration != self._iteration:
            raise StateError(
                f"{type(self).__name__}: got iteration {iteration}, but the state is in iteration"
                f" {self._iteration}, or missing. Set the state of that iteration first."
            )


def has_text_stages(trainer: type[Trainer]) -> bool:
    """Return whether a trainer's iterations are split into the stages of chat models."""
    return issubclass(trainer, TextTrainerComponents) and trainer.supports_stages()
