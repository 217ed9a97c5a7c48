"""Rollouts: all environments side by side, step by step, each iteration from a reset.

What an iteration collects depends on the weights, the data cursor and (seed, stage, iteration).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn.probabilistic import InteractionType, interaction_type
from torch import Tensor

from ratchet.seeding import torch_generator

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ratchet.agents.combined import CombinedAgents
    from ratchet.scenarios.dataset import DataCursor
    from ratchet.scenarios.environment import Environment

_OUTCOME_KEYS = ("done", "terminated", ("agents", "done"), ("agents", "reward"))
_SEED_BOUND = 2**31


def acts_deterministically() -> bool:
    """Say whether the interaction type that is set asks for the likeliest actions."""
    return interaction_type() in (InteractionType.DETERMINISTIC, InteractionType.MODE)


class RolloutCollector:
    """Collects batches of ``E × T`` frames.

    Parameters
    ----------
    environment
        What is played; E and T are its ``num_envs`` and ``steps_per_env_per_iteration``.
    combined_agents
        Who plays.
    cursor
        Which datapoints come next; advanced by each batch.
    seed, stage
        Of the experiment; with the iteration they make the generators.
    """

    def __init__(
        self,
        environment: Environment,
        combined_agents: CombinedAgents,
        cursor: DataCursor,
        *,
        seed: int,
        stage: str,
    ) -> None:
        self.environment = environment
        self.combined_agents = combined_agents
        self.cursor = cursor
        self.seed = seed
        self.stage = stage
        self.iteration = 0

    def __iter__(self) -> Iterator[TensorDictBase]:
        """Collect batch after batch, without end, counting :attr:`iteration`."""
        while True:
            yield self.collect(self.iteration)
            self.iteration += 1

    @torch.no_grad()
    def collect(self, iteration: int, num_steps: int | None = None) -> TensorDictBase:
        """Collect the batch of an iteration.

        Parameters
        ----------
        iteration
            Whose generators are used.
        num_steps
            T; the environment's by default.

        Returns
        -------
        TensorDictBase
            ``[E, T]``. Where the batch cuts an episode off, ``("next", "agents", "value")`` holds
            the values of those who act next, and ``("next", "agents", "value_known")`` says so.
        """
        environment, agents = self.environment, self.combined_agents
        steps = environment.steps_per_env_per_iteration if num_steps is None else num_steps
        device = environment.device
        draws = torch_generator(self.seed, self.stage, iteration, "environment")
        generators = {
            name: torch_generator(self.seed, self.stage, iteration, "action", name, device=device)
            for name in agents.agent_names
        }
        deterministic = acts_deterministically()
        frames: list[TensorDictBase] = []
        with agents.bound_to(environment):
            cache = agents.new_cache()
            td = environment.reset(*self._next_episodes(environment.num_envs, draws, device))
            for step in range(steps):
                agents.act(td, generators=generators, deterministic=deterministic, cache=cache)
                following = environment.step(td)
                td.set("next", outcome(following))
                frames.append(td)
                if step + 1 < steps:
                    td = self._restart_ended(observation(following), draws, device)
            rollouts = torch.stack(frames, 1)
            final = observation(following)
            self._add_final_values(rollouts, final, generators)
        return rollouts

    def _next_episodes(
        self, count: int, draws: torch.Generator, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Give the datapoints and protocol seeds of new episodes, int64 ``[count]`` each."""
        seeds = torch.randint(_SEED_BOUND, (count,), generator=draws)
        return self.cursor.take(count).to(device), seeds.to(device)

    def _restart_ended(
        self, td: TensorDictBase, draws: torch.Generator, device: torch.device
    ) -> TensorDictBase:
        ended = td.get("done") | td.get("terminated")
        count = int(ended.sum())
        if count == 0:
            return td
        ids, seeds = self._next_episodes(count, draws, device)
        return self.environment.reset_where(td, ended, ids, seeds)

    def _add_final_values(
        self,
        rollouts: TensorDictBase,
        final: TensorDictBase,
        generators: Mapping[str, torch.Generator],
    ) -> None:
        """Add the values of the observations after the last step, where they matter."""
        value = torch.zeros_like(rollouts.get(("agents", "value")))
        known = torch.zeros_like(value, dtype=torch.bool)
        ongoing = ~(final.get("done") | final.get("terminated"))
        acting = final.get(("agents", "active")).any(-1) & ongoing.unsqueeze(-1)
        acting &= ~final.get(("agents", "done"))
        if bool(acting.any()):
            estimate = self.combined_agents.values(final, acting, generators=generators)
            value[:, -1] = torch.where(acting, estimate, 0.0)
            known[:, -1] = acting
        rollouts.set(("next", "agents", "value"), value)
        rollouts.set(("next", "agents", "value_known"), known)


def outcome(following: TensorDictBase) -> TensorDict:
    """Copy what a step led to: done, terminated, and the agents' done and reward."""
    source = {key: following.get(key).clone() for key in _OUTCOME_KEYS}
    agents = {key[1]: value for key, value in source.items() if isinstance(key, tuple)}
    size = following.batch_size
    return TensorDict(
        {
            "done": source["done"],
            "terminated": source["terminated"],
            "agents": TensorDict(agents, batch_size=size),
        },
        batch_size=size,
    )


def observation(following: TensorDictBase) -> TensorDictBase:
    """Leave out the rewards, which belong to the step before."""
    return following.exclude(("agents", "reward"))
