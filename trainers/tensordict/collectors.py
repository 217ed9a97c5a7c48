"""Rollout collection: all environments in parallel, step by step.

An iteration's rollouts depend on the weights, the data cursor, the unfinished episodes, and (seed,
stage, iteration). If an environment does not continue episodes across iterations, each iteration
starts new ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn.probabilistic import InteractionType, interaction_type
from torch import Tensor

from ratchet.scenarios.tensor_environment import COUNTED_DECISION
from ratchet.seeding import torch_generator
from trainers.tensordict.objectives.value_estimators import acting_mask

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ratchet.agents.actor_critic import ActorCritic
    from ratchet.scenarios.dataset import DataCursor
    from ratchet.scenarios.tensor_environment import Key, TensorEnvironment

_SEED_BOUND = 2**31
_TRUNCATED = ("agents", "truncated")
_OF_STEPS: tuple[Key, ...] = (("agents", "reward"), _TRUNCATED, COUNTED_DECISION)
"""Keys that belong to the previous step and not to a state."""


def acts_deterministically() -> bool:
    """Return whether the current interaction type selects greedy actions."""
    return interaction_type() in (InteractionType.DETERMINISTIC, InteractionType.MODE)


class RolloutCollector:
    """Collects batches of ``E × T`` frames.

    E and T are the environment's ``num_envs`` and ``steps_per_env_per_iteration``. Each batch
    advances the cursor, which determines the next datapoints; generators are derived from seed,
    stage and iteration.
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
        """Collect batches endlessly, counting :attr:`iteration`."""
        while True:
            yield self.collect(self.iteration)
            self.iteration += 1

    @torch.no_grad()
    def collect(self, iteration: int, num_steps: int | None = None) -> TensorDictBase:
        """Collect the batch of an iteration, ``[E, T]``; T is the environment's by default.

        Where the batch or a time limit truncates an episode, ``("next", "agents", "value")``
        contains the values of the agents that act next, and ``("next", "agents", "value_known")``
        is True.
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
        unseen = _UnseenObservations(agents)
        with agents.bound_to(environment):
            cache = agents.new_deferring_cache()
            td = self._first_states(draws)
            for step in range(steps):
                agents.act(td, generators=generators, deterministic=deterministic, cache=cache)
                following = environment.step(td)
                agents.hand_on(td, following)
                frames.append(td)
                outcomes.append(following)
                td = following
                unseen.note(td)
                if step + 1 < steps or environment.carries_episodes:
                    td = self._restart_ended(td, draws)
            self._unfinished = td if environment.carries_episodes else None
            left_out: tuple[Key, ...] = (*environment.hidden_keys, *_OF_STEPS)
            rollouts = stack_frames(frames, leave_out=left_out)
            agents.complete(rollouts, cache)
            following = stack_frames(outcomes, only=environment.outcome_keys)
            value, known = unseen.values(rollouts, generators)
        following.set(("agents", "value"), value)
        following.set(("agents", "value_known"), known)
        return rollouts.set("next", following)

    def save_episodes(self) -> dict[str, Tensor]:
        """Return the episodes that the next batch continues, as tensors by name; initially none."""
        if self._unfinished is None:
            return dict(self._saved)
        return self.environment.save_episodes(self._unfinished)

    def load_episodes(self, saved: Mapping[str, Tensor]) -> None:
        """Restore the result of :meth:`save_episodes`; the next batch continues the episodes."""
        self._unfinished, self._saved = None, dict(saved)

    def _first_states(self, draws: torch.Generator) -> TensorDictBase:
        """Return the initial states of a batch."""
        if self._unfinished is not None:
            return self._unfinished
        if self._saved:
            saved, self._saved = self._saved, {}
            return self.environment.restore_episodes(saved)
        return self.environment.reset(*self._next_episodes(self.environment.num_envs, draws))

    def _next_episodes(self, count: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return the datapoints and protocol seeds of new episodes, int64 ``[count]`` each."""
        device = self.environment.device
        seeds = torch.randint(_SEED_BOUND, (count,), generator=draws)
        return self.cursor.take(count).to(device), seeds.to(device)

    def _restart_ended(self, td: TensorDictBase, draws: torch.Generator) -> TensorDictBase:
        ended = td.get("done") | td.get("terminated")
        count = int(ended.sum())
        if not count:
            return td
        episodes = self._next_episodes(count, draws)
        return self.environment.reset_where(td, ended, *episodes)


class _UnseenObservations:
    """Observations after truncations, at which no action is taken, but whose values are needed.

    Those after the last step, and those at which a time limit has ended an episode.
    """

    def __init__(self, agents: ActorCritic) -> None:
        self.agents = agents
        self.states: list[TensorDictBase] = []

    def note(self, following: TensorDictBase) -> None:
        """Store the state after a step, without the actions that are added to it later."""
        self.states.append(following.copy())

    def values(
        self, rollouts: TensorDictBase, generators: Mapping[str, torch.Generator]
    ) -> tuple[Tensor, Tensor]:
        """Estimate all in one pass: values and whether they are known, ``[E, T, A]`` each."""
        value = torch.zeros_like(rollouts.get(("agents", "value")))
        known = self._acting(value)
        steps = known.any(-1).any(0).nonzero().flatten().tolist()
        rows = {step: known[:, step].any(-1).nonzero().flatten() for step in steps}
        if not rows:
            return value, known
        frames = [self._frame(step)[where] for step, where in rows.items()]
        acting = torch.cat([known[where, step] for step, where in rows.items()])
        estimates = self.agents.values(torch.cat(frames), acting, generators=generators)
        estimates = torch.where(acting, estimates, 0.0)
        parts = torch.split(estimates, [len(where) for where in rows.values()])
        for (step, where), part in zip(rows.items(), parts, strict=True):
            value[where, step] = part
        return value, known

    def _acting(self, like: Tensor) -> Tensor:
        """Return which agents would act in them, bool ``[E, T, A]``."""
        last = self.states[-1]
        over = (last.get("done") | last.get("terminated")).unsqueeze(-1)
        if last.get(_TRUNCATED, None) is None:
            acting = torch.zeros_like(like, dtype=torch.bool)
        else:
            acting = torch.stack([state.get(_TRUNCATED) for state in self.states], 1)
        acting[:, -1] |= acting_mask(last) & ~over
        return acting

    def _frame(self, step: int) -> TensorDictBase:
        return self.states[step].select(*self.agents.frame_keys, strict=False)


class EpisodeFrames:
    """Frames of episodes that run in parallel, with new ones started as others end."""

    def __init__(self, environment: TensorEnvironment) -> None:
        self._environment = environment
        self._frames: list[TensorDictBase] = []
        self._outcomes: list[TensorDictBase] = []
        self._slots: list[Tensor] = []

    def add(self, td: TensorDictBase, following: TensorDictBase, slot: Tensor) -> None:
        """Add a step ``[E]``, its outcome, and the indices of its episodes, int64 ``[E]``."""
        self._frames.append(td)
        self._outcomes.append(following)
        self._slots.append(slot.clone())

    def rollouts(self, count: int) -> TensorDict:
        """Return the first ``count`` episodes, concatenated: ``[1, T]``."""
        left_out: tuple[Key, ...] = (*self._environment.hidden_keys, *_OF_STEPS)
        rollouts = stack_frames(self._frames, leave_out=left_out)
        rollouts.set("next", stack_frames(self._outcomes, only=self._environment.outcome_keys))
        slot = torch.stack(self._slots, 1).flatten()
        order = torch.argsort(slot, stable=True)
        chosen = order[slot[order] < count].to(self._environment.device)
        return cast(TensorDict, rollouts.flatten(0, 1)[chosen].unsqueeze(0))


def stack_frames(
    frames: Sequence[TensorDictBase],
    *,
    only: Sequence[Key] | None = None,
    leave_out: Sequence[Key] = (),
) -> TensorDict:
    """Stack T ≥ 1 frames ``[E]`` of the same kind into ``[E, T]``.

    ``only``: these keys, if present; all by default. ``leave_out``: exclude these and their
    children.
    """
    first = frames[0]
    keys = first.keys(include_nested=True, leaves_only=True) if only is None else only
    top: dict[str, Tensor] = {}
    nested: dict[str, dict[str, Tensor]] = {}
    for key in keys:
        name, inner = (key, None) if isinstance(key, str) else (key[0], key[1])
        if name in leave_out or key in leave_out or first.get(key, None) is None:
            continue
        stacked = torch.stack([cast(Tensor, frame.get(key)) for frame in frames], 1)
        if inner is None:
            top[name] = stacked
        else:
            nested.setdefault(name, {})[inner] = stacked
    size = [first.batch_size[0], len(frames)]
    groups = {name: TensorDict(group, batch_size=size) for name, group in nested.items()}
    return TensorDict({**top, **groups}, batch_size=size)


def with_sample_log_prob(rollouts: TensorDictBase) -> TensorDictBase:
    """Add the name of actions' log-probabilities that TorchRL losses read."""
    agents = rollouts.get("agents")
    log_prob = agents.get("log_prob", None)
    if log_prob is not None:
        agents.set("sample_log_prob", log_prob)
    return rollouts


def observation(following: TensorDictBase) -> TensorDictBase:
    """Exclude the rewards, which belong to the previous step."""
    return following.exclude(*_OF_STEPS)
