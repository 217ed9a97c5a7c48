"""Tests: play each datapoint once and record its outcome.

All environments stay busy: when an episode ends, its environment starts the next datapoint.
Datapoints after the last requested one are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from tensordict import TensorDictBase
from torch import Tensor

from ratchet.errors import UnknownNameError, nearest
from ratchet.scenarios.tensor_environment import COUNTED_DECISION
from ratchet.seeding import torch_generator
from trainers.results import Metrics, Table, TestResult
from trainers.tensordict.collectors import EpisodeFrames, acts_deterministically, observation
from trainers.tensordict.objectives.value_estimators import acting_mask
from trainers.tensordict.statistics.episodes import (
    PolicyMeasures,
    decision_statistics,
    episode_statistics,
)
from trainers.tensordict.statistics.log_stats import by_agent

if TYPE_CHECKING:
    from ratchet.agents.actor_critic import ActorCritic
    from ratchet.parameters.base import TestGroups
    from ratchet.scenarios.base import ScenarioInstance
    from ratchet.scenarios.dataset import TensorDictDataset
    from ratchet.scenarios.tensor_environment import TensorEnvironment

NO_DECISION = 2
_SEED_BOUND = 2**31


class TestPlayer:
    """Plays datapoints of one environment to the end, starting with the first.

    Generators are derived from seed, purpose and the stage ``"test"``.
    """

    __test__ = False  # not a test case

    def __init__(
        self,
        environment: TensorEnvironment,
        combined_agents: ActorCritic,
        *,
        seed: int,
        purpose: str = "test",
    ) -> None:
        self.environment = environment.own()
        self.agents = combined_agents
        self.seed = seed
        self.purpose = purpose
        self.num_datapoints = len(environment.dataset)
        self.keeps_rollouts = False
        """Whether rollouts are stored in :attr:`rollouts`."""
        self.num_filmed = 0
        """The number of first episodes whose actions are stored in :attr:`filmed`."""
        self.filmed: dict[int, list[Tensor]] = {}
        """Datapoint → actions ``[A, K]``, one for each step."""
        self.rollouts: TensorDictBase | None = None
        """The episodes of the last call of :meth:`play`, concatenated: ``[1, T]``."""
        self.measures = PolicyMeasures()
        """Measures of policies and critics in the last call of :meth:`play`."""

    @property
    def num_envs(self) -> int:
        """The number of datapoints played in parallel."""
        return min(int(self.environment.num_envs), self.num_datapoints)

    @torch.no_grad()
    def play(self, count: int, on_batch: Callable[[], None] | None = None) -> Table:
        """Play the first ``count`` datapoints, or all if there are fewer.

        ``on_batch`` is called once per ``num_envs`` finished episodes. Returns one row per
        datapoint, in order: ``datapoint_id``, ``rounds``, ``terminated``, and ``reward.AGENT`` for
        each agent; if datapoints have labels, also ``y`` and ``decision.AGENT``.
        """
        num_played = min(count, self.num_datapoints)
        names = self.agents.agent_names
        columns = _Columns(num_played, len(names))
        deterministic = acts_deterministically()
        generators = self._seed_generators()
        self.measures, self.filmed = PolicyMeasures(), {}
        with self.agents.bound_to(self.environment):
            cache = self.agents.new_cache()
            td = self.environment.reset(*self._next(self.num_envs))
            slot = torch.arange(self.num_envs)  # the datapoint of each environment
            running = columns.fresh(self.num_envs)
            frames = EpisodeFrames(self.environment) if self.keeps_rollouts else None
            finished = 0
            while finished < num_played:
                self.agents.act(td, generators=generators, deterministic=deterministic, cache=cache)
                following = self.environment.step(td)
                self.agents.hand_on(td, following)
                running.count(td, following)
                self._measure(td, slot < num_played)
                self._record_actions(td, slot)
                if frames is not None:
                    frames.add(td, following, slot)
                ended = (following.get("done") | following.get("terminated")).cpu()
                counted = ended & (slot < num_played)
                columns.write(slot[counted], running, counted, td, following)
                batches = finished // self.num_envs
                finished += int(counted.sum())
                if on_batch is not None:
                    for _ in range(finished // self.num_envs - batches):
                        on_batch()
                td = observation(following)
                num_ended = int(ended.sum())
                if num_ended and finished < num_played:
                    slot[ended] = self._started + torch.arange(num_ended)
                    running.restart(ended)
                    ids, seeds = self._next(num_ended)
                    td = self.environment.reset_where(td, ended.to(ids.device), ids, seeds)
        self.environment.close()
        self.rollouts = None if frames is None else frames.rollouts(num_played)
        return columns.table(list(names))

    def _measure(self, td: TensorDictBase, counted: Tensor) -> None:
        """Measure the policies on counted datapoints, bool ``[E]``."""
        acting = acting_mask(td)
        counts = acting & counted.to(acting.device).unsqueeze(-1)
        self.measures.add(td, counts, with_values=True)

    def _record_actions(self, td: TensorDictBase, slot: Tensor) -> None:
        """Store the actions of episodes ``slot`` int64 ``[E]`` that are recorded as videos."""
        filmed_envs = (slot < self.num_filmed).nonzero().flatten()
        if not len(filmed_envs):
            return
        actions = td.get(("agents", "action"))
        acted = actions[filmed_envs.to(actions.device)].cpu()
        for datapoint, done in zip(slot[filmed_envs].tolist(), acted, strict=True):
            self.filmed.setdefault(datapoint, []).append(done)

    def _seed_generators(self) -> dict[str, torch.Generator]:
        """Reset all generators, so that tests are independent; return the agents'."""
        self._started = 0
        self._draws = torch_generator(self.seed, "test", 0, f"{self.purpose}.environment")
        device = self.environment.device
        return {
            name: torch_generator(
                self.seed, "test", 0, f"{self.purpose}.action", name, device=device
            )
            for name in self.agents.agent_names
        }

    def _next(self, count: int) -> tuple[Tensor, Tensor]:
        ids = (torch.arange(count) + self._started) % self.num_datapoints
        self._started += count
        seeds = torch.randint(_SEED_BOUND, (count,), generator=self._draws)
        device = self.environment.device
        return ids.to(device), seeds.to(device)


class _Running:
    """Running totals of the current episodes."""

    def __init__(self, num_envs: int, num_agents: int) -> None:
        self.reward = torch.zeros(num_envs, num_agents, dtype=torch.float64)
        self.decision = torch.full((num_envs, num_agents), NO_DECISION)
        self.rounds = torch.zeros(num_envs, dtype=torch.int64)

    def count(self, td: TensorDictBase, following: TensorDictBase) -> None:
        self.rounds += 1
        summed = following.get(("agents", "episode_reward"), None)
        if summed is not None:
            self.reward = summed.cpu().double()
        else:
            self.reward += following.get(("agents", "reward")).cpu()
        agent_decision = td.get(("agents", "decision"), None)
        decision = following.get(COUNTED_DECISION, agent_decision)
        if decision is not None:
            has_decided = (decision < NO_DECISION) & acting_mask(td)
            self.decision = torch.where(has_decided.cpu(), decision.cpu(), self.decision)

    def restart(self, ended: Tensor) -> None:
        self.reward[ended], self.decision[ended], self.rounds[ended] = 0.0, NO_DECISION, 0


class _Columns:
    """The table in construction, one row per requested datapoint."""

    def __init__(self, num_datapoints: int, num_agents: int) -> None:
        self.num_agents = num_agents
        self.datapoint_id = torch.zeros(num_datapoints, dtype=torch.int64)
        self.y: Tensor | None = None
        self.terminated = torch.zeros(num_datapoints, dtype=torch.bool)
        self.results = _Running(num_datapoints, num_agents)

    def fresh(self, num_envs: int) -> _Running:
        return _Running(num_envs, self.num_agents)

    def write(
        self,
        rows: Tensor,
        running: _Running,
        which: Tensor,
        td: TensorDictBase,
        following: TensorDictBase,
    ) -> None:
        self.datapoint_id[rows] = td.get("datapoint_id").cpu()[which]
        y = td.get("y", None)
        if y is not None:
            self.y = torch.zeros_like(self.datapoint_id) if self.y is None else self.y
            self.y[rows] = y.cpu()[which]
        self.terminated[rows] = following.get("terminated").cpu()[which]
        self.results.reward[rows] = running.reward[which]
        self.results.decision[rows] = running.decision[which]
        self.results.rounds[rows] = running.rounds[which]

    def table(self, names: list[str]) -> Table:
        table: Table = {
            "datapoint_id": self.datapoint_id.tolist(),
            **({} if self.y is None else {"y": self.y.tolist()}),
            "rounds": self.results.rounds.tolist(),
            "terminated": self.terminated.tolist(),
        }
        for index, name in enumerate(names):
            if self.y is not None:
                table[f"decision.{name}"] = self.results.decision[:, index].tolist()
            table[f"reward.{name}"] = self.results.reward[:, index].tolist()
        return table


def environment_for(scenario: ScenarioInstance, dataset: str) -> TensorEnvironment:
    """Return the environment of a dataset; UnknownNameError if none exists."""
    environments = {"train": scenario.train_environment, **scenario.test_environments}
    if dataset not in environments:
        raise UnknownNameError(
            f"dataset: no {dataset!r} to test on.{nearest(dataset, environments)}"
        )
    return environments[dataset]


def summarise_test(
    table: Table,
    dataset: TensorDictDataset,
    agent_names: list[str],
    verifier_names: list[str],
    measures: PolicyMeasures | None = None,
    *,
    groups: Sequence[TestGroups] = (),
) -> TestResult:
    """Complete a table of :meth:`TestPlayer.play` and average it; undecided counts as wrong.

    With verifiers the table gets ``decision`` and ``correct``: the first verifier's decision, and
    whether it is y; ``groups`` add their columns of the data.
    """
    metrics = complete_table(table, dataset, verifier_names, groups)
    length = torch.tensor(table["rounds"])
    reward = torch.tensor([table[f"reward.{name}"] for name in agent_names], dtype=torch.float64)
    of_episodes, per_agent = episode_statistics(length, reward.mT)
    per_agent["mean_step_reward"] = reward.sum(1) / length.sum()
    if measures is not None:
        per_agent |= {name: means.cpu() for name, means in measures.summary().items()}
    metrics |= of_episodes | by_agent(per_agent, agent_names)
    return TestResult(metrics, table)


def complete_table(
    table: Table,
    dataset: TensorDictDataset,
    deciders: list[str],
    groups: Sequence[TestGroups],
) -> Metrics:
    """Add ``decision`` and ``correct``, the first decider's, and the groups' columns of the data.

    Returns ``num_datapoints``, and with deciders ``accuracy`` and each decider's.
    """
    metrics: Metrics = {"num_datapoints": float(len(table["datapoint_id"]))}
    for name in deciders:
        decisions = table[f"decision.{name}"]
        columns = (decisions, table["y"], table["datapoint_id"])
        statistics = decision_statistics(*(torch.tensor(column) for column in columns))
        metrics |= {f"{name}.{what}": value for what, value in statistics.items()}
        if name == deciders[0]:
            table["decision"] = list(decisions)
            table["correct"] = [d == y for d, y in zip(decisions, table["y"], strict=True)]
            metrics["accuracy"] = metrics[f"{name}.accuracy"]
    for column in (each.column for each in groups if each.column in dataset.fields):
        table[column] = dataset[column][torch.tensor(table["datapoint_id"])].tolist()
    return metrics
