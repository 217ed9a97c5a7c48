"""Rollouts: all environments side by side, step by step.

What an iteration collects depends on the weights, the data cursor, the episodes that are carried
over, and (seed, stage, iteration). Where an environment does not carry episodes over, each
iteration begins with new ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn.probabilistic import InteractionType, interaction_type
from torch import Tensor

from ratchet.seeding import torch_generator
from trainers.tensordict.value_estimators import acting_mask

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ratchet.agents.actor_critic import ActorCritic
    from ratchet.scenarios.dataset import DataCursor
    from ratchet.scenarios.tensor_environment import Key, TensorEnvironment

_SEED_BOUND = 2**31
_TRUNCATED = ("agents", "truncated")


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
        environment: TensorEnvironment,
        combined_agents: ActorCritic,
        cursor: DataCursor,
        *,
        seed: int,
        stage: str,
    ) -> None:
        self.environment = environment.own()
        self.combined_agents = combined_agents
        self.cursor = cursor
        self.seed = seed
        self.stage = stage
        self.iteration = 0
        self._unfinished: TensorDictBase | None = None
        self._saved: dict[str, Tensor] = {}

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
            ``[E, T]``. Where the batch or a time limit cuts an episode off,
            ``("next", "agents", "value")`` holds the values of those who act next, and
            ``("next", "agents", "value_known")`` says so.
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
        outcomes: list[TensorDict] = []
        ends = _UnseenObservations(agents, steps)
        with agents.bound_to(environment):
            cache = agents.new_cache()
            td = self._first_states(draws)
            for step in range(steps):
                agents.act(td, generators=generators, deterministic=deterministic, cache=cache)
                following = environment.step(td)
                frames.append(td)
                outcomes.append(following)
                td = observation(following)
                ends.note(step, following, td)
                if step + 1 < steps or environment.carries_episodes:
                    td = self._restart_ended(td, draws)
            self._unfinished = td if environment.carries_episodes else None
            rollouts = stack_frames(frames, leave_out=environment.hidden_keys)
            following = stack_frames(outcomes, only=environment.outcome_keys)
            value, known = ends.values(rollouts, generators)
        following.set(("agents", "value"), value)
        following.set(("agents", "value_known"), known)
        return rollouts.set("next", following)

    def save_episodes(self) -> dict[str, Tensor]:
        """Give the episodes that the next batch goes on with, as tensors by name; none at first."""
        if self._unfinished is None:
            return dict(self._saved)
        return self.environment.save_episodes(self._unfinished)

    def load_episodes(self, saved: Mapping[str, Tensor]) -> None:
        """Go on with what :meth:`save_episodes` gave; they are taken up with the next batch."""
        self._unfinished, self._saved = None, dict(saved)

    def _first_states(self, draws: torch.Generator) -> TensorDictBase:
        """Give the states that a batch begins with."""
        if self._unfinished is not None:
            return self._unfinished
        if self._saved:
            saved, self._saved = self._saved, {}
            return self.environment.restore_episodes(saved)
        return self.environment.reset(*self._next_episodes(self.environment.num_envs, draws))

    def _next_episodes(self, count: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
        """Give the datapoints and protocol seeds of new episodes, int64 ``[count]`` each."""
        device = self.environment.device
        seeds = torch.randint(_SEED_BOUND, (count,), generator=draws)
        return self.cursor.take(count).to(device), seeds.to(device)

    def _restart_ended(self, td: TensorDictBase, draws: torch.Generator) -> TensorDictBase:
        ended = td.get("done") | td.get("terminated")
        count = int(ended.sum())
        if count == 0:
            return td
        return self.environment.reset_where(td, ended, *self._next_episodes(count, draws))


class _UnseenObservations:
    """The observations after a batch's cuts, in which nobody acts any more: their values count.

    Those after the last step, and those at which a time limit has ended an episode.
    """

    def __init__(self, agents: ActorCritic, num_steps: int) -> None:
        self.agents = agents
        self.last = num_steps - 1
        self.frames: list[TensorDictBase] = []
        self.places: list[tuple[Tensor, int]] = []
        self.acting: list[Tensor] = []

    def note(self, step: int, following: TensorDictBase, td: TensorDictBase) -> None:
        """Keep what is needed of the states ``td`` after a step."""
        truncated = following.get(_TRUNCATED, None)
        if step == self.last:
            over = td.get("done") | td.get("terminated")
            acting = acting_mask(td) & ~over.unsqueeze(-1)
            if truncated is not None:
                acting |= truncated
        elif truncated is not None:
            acting = truncated
        else:
            return
        rows = acting.any(-1).nonzero().flatten()
        if len(rows):
            self.frames.append(td.select(*self.agents.frame_keys, strict=False)[rows])
            self.places.append((rows, step))
            self.acting.append(acting[rows])

    def values(
        self, rollouts: TensorDictBase, generators: Mapping[str, torch.Generator]
    ) -> tuple[Tensor, Tensor]:
        """Estimate them all at once: values and whether they are known, ``[E, T, A]`` each."""
        value = torch.zeros_like(rollouts.get(("agents", "value")))
        known = torch.zeros_like(value, dtype=torch.bool)
        if not self.frames:
            return value, known
        acting = torch.cat(self.acting)
        estimate = self.agents.values(torch.cat(self.frames), acting, generators=generators)
        estimate = torch.where(acting, estimate, 0.0)
        start = 0
        for rows, step in self.places:
            stop = start + len(rows)
            value[rows, step], known[rows, step] = estimate[start:stop], acting[start:stop]
            start = stop
        return value, known


def stack_frames(
    frames: Sequence[TensorDictBase],
    *,
    only: Sequence[Key] | None = None,
    leave_out: Sequence[str] = (),
) -> TensorDict:
    """Stack T frames ``[E]`` of the same kind into ``[E, T]``.

    Parameters
    ----------
    frames
        At least one.
    only
        Which keys; all by default. A key that is not there is left out.
    leave_out
        Top-level keys to leave out.
    """
    first = frames[0]
    keys = first.keys(include_nested=True, leaves_only=True) if only is None else only
    top: dict[str, Tensor] = {}
    nested: dict[str, dict[str, Tensor]] = {}
    for key in keys:
        name, inner = (key, None) if isinstance(key, str) else (key[0], key[1])
        if name in leave_out or first.get(key, None) is None:
            continue
        stacked = torch.stack([cast(Tensor, frame.get(key)) for frame in frames], 1)
        if inner is None:
            top[name] = stacked
        else:
            nested.setdefault(name, {})[inner] = stacked
    size = [first.batch_size[0], len(frames)]
    groups = {name: TensorDict(group, batch_size=size) for name, group in nested.items()}
    return TensorDict({**top, **groups}, batch_size=size)


def observation(following: TensorDictBase) -> TensorDictBase:
    """Leave out the rewards, which belong to the step before."""
    return following.exclude(("agents", "reward"), _TRUNCATED)
