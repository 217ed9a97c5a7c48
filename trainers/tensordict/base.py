"""Base class of trainers of local networks: torch's configuration, and random generators."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from tensordict.nn.probabilistic import InteractionType, set_interaction_type

from ratchet.errors import ParameterError
from ratchet.seeding import derive_seed, seeded_globals, torch_generator
from trainers.base import Trainer, deterministic_kernels, enter_contexts, torch_threads
from trainers.callbacks.base import CallbackState
from trainers.named import TrainerTraits
from trainers.tensordict.states import snapshots
from trainers.tensordict.states.loaded_agents import load_earlier_agents

if TYPE_CHECKING:
    from ratchet.agents.actor_critic import ActorCritic
    from ratchet.scenarios.base import ScenarioInstance
    from ratchet.scenarios.tensor_environment import TensorEnvironment


class TensorDictTrainer(Trainer):
    """Base of trainers whose agents are local networks. Subclasses implement :meth:`train`.

    ``train`` should run a training and a test loop, each a method decorated with
    :func:`trainers.attach_progress_bar` and called inside an ``ExitStack`` that
    :meth:`_build_train_context` or :meth:`_build_test_context` has filled.
    """

    traits = TrainerTraits(plays_text=False, loads_agents=True)
    scenario_instance: ScenarioInstance

    def prepare_training(self) -> None:
        """Load agents of earlier runs, or resume; see :meth:`Trainer.prepare_training`."""
        if self.scenario_instance.combined_agents is not None:
            load_earlier_agents(self.combined_agents, self.hyper_params.agents, self.state_finder)
        super().prepare_training()

    @property
    def device(self) -> torch.device:
        """The device of agents and environments."""
        return torch.device(self.settings.device)

    @property
    def combined_agents(self) -> ActorCritic:
        """All agents as one actor.

        Raises ParameterError if the scenario was built without them.
        """
        combined = self.scenario_instance.combined_agents
        if combined is None:
            raise ParameterError(
                f"{type(self).__name__}: the scenario instance has no combined agents;"
                " build it with build_scenario_instance."
            )
        return combined

    @property
    def train_environment(self) -> TensorEnvironment:
        """The environment on the training set."""
        return self.scenario_instance.train_environment

    @property
    def test_environment(self) -> TensorEnvironment:
        """The environment on the test set."""
        return self.scenario_instance.test_environment

    def _build_train_context(self, stack: ExitStack) -> list[AbstractContextManager[Any]]:
        """Enter and return training's contexts: threads, seeds, sampled actions, train mode."""
        return enter_contexts(
            stack,
            torch_threads(self.settings.num_threads),
            deterministic_kernels(self.settings),
            seeded_globals(derive_seed(self.hyper_params.seed, "train")),
            set_interaction_type(InteractionType.RANDOM),
            _mode(self.scenario_instance.combined_agents, training=True),
            self.checkpoint_files.resumable("train"),
        )

    def _build_test_context(self, stack: ExitStack) -> list[AbstractContextManager[Any]]:
        """Enter and return a test's contexts: no gradients, greedy actions, eval mode.

        Actions are sampled if ``rl.test_by_sampling`` is true; ``both`` adds separate sampled
        tests.
        """
        samples = self.hyper_params.rl.test_by_sampling is True
        return enter_contexts(
            stack,
            torch_threads(self.settings.num_threads),
            deterministic_kernels(self.settings),
            seeded_globals(derive_seed(self.hyper_params.seed, "test")),
            set_interaction_type(
                InteractionType.RANDOM if samples else InteractionType.DETERMINISTIC
            ),
            torch.no_grad(),
            _mode(self.scenario_instance.combined_agents, training=False),
            self.checkpoint_files.resumable("test"),
        )

    def take_weights(self) -> CallbackState:
        """Copy all agents' parameters and buffers."""
        agents = snapshots.take_agents(self.combined_agents)
        return CallbackState(tensors=snapshots.flatten_agents(agents))

    def put_weights(self, weights: CallbackState) -> None:
        """Restore the result of :meth:`take_weights`."""
        agents = snapshots.unflatten_agents(weights.tensors)
        snapshots.load_agents(self.combined_agents, agents)

    def agent_generators(
        self, stage: str, iteration: int, purpose: str
    ) -> dict[str, torch.Generator]:
        """Return a generator for each agent, for one purpose in one iteration of one stage."""
        return {
            name: torch_generator(
                self.hyper_params.seed, stage, iteration, purpose, name, device=self.device
            )
            for name in self.agent_names
        }


@contextmanager
def _mode(agents: ActorCritic | None, *, training: bool) -> Iterator[None]:
    """Set the agents' train or eval mode, and restore it afterwards."""
    before = None if agents is None else agents.training
    if agents is not None:
        agents.train(training)
    try:
        yield
    finally:
        if agents is not None and before is not None:
            agents.train(before)
