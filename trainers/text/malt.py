"""MALT: trees of rollouts, and preferences between replies to the same prompt.

Source: Motwani et al., "MALT: Improving Reasoning with Multi-Agent LLM Training" (2024).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ratchet.algorithms import preference_trees as trees
from ratchet.rollouts.concatenation import concatenate_nested_array_dicts
from ratchet.rollouts.nested_array_dict import NestedArrayDict
from ratchet.scenarios.pure_text.agents.examples import PreferencePair
from ratchet.scenarios.pure_text.playing import begin_episode
from ratchet.scenarios.pure_text.rollout import episode_to_rollout, play_step
from ratchet.seeding import numpy_generator
from trainers.named import register_trainer
from trainers.text.base import PureTextRlTrainer

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.rollouts.nested_array_dict import NestedArrayDict
    from ratchet.scenarios.pure_text.agents.whole_agent import CallContext
    from ratchet.scenarios.pure_text.environment import PureTextEnvironment
    from ratchet.scenarios.pure_text.episode import Episode
    from ratchet.scenarios.pure_text.rollout import TextActor
    from trainers.results import Metrics
    from trainers.text.plans import PlannedRollout
    from trainers.text.sampling import Calls


@register_trainer("pure_text_malt")
class PureTextMaltTrainer(PureTextRlTrainer):
    """Prefers replies whose expected reward is above an agent's mid-point to those below.

    In training, each planned rollout is a tree. Tests use single rollouts. Invalid replies are in
    no pair: their text should not be preferred, or is missing.
    """

    @property
    def num_responses(self) -> int:
        """The number of replies sampled at each step."""
        return self.responses_per_step(self.hyper_params)

    @classmethod
    def responses_per_step(cls, hyper_params: HyperParameters) -> int:
        """Return the number of replies sampled at each inner node."""
        return int(hyper_params.pure_text_malt.num_responses_per_timestep)

    @classmethod
    def examples_per_rollout(cls, hyper_params: HyperParameters, num_rounds: int) -> float:
        """Return the number of a tree's nodes with several replies."""
        branches = cls.responses_per_step(hyper_params)
        return float(sum(branches**depth for depth in range(num_rounds)))

    @property
    def _nodes_per_tree(self) -> int:
        return nodes_per_tree(self.num_responses, self.max_message_rounds)

    async def _sample_one(
        self,
        environment: PureTextEnvironment,
        iteration: int,
        planned: PlannedRollout,
        calls: Calls,
    ) -> NestedArrayDict:
        """Grow a tree in training; collect one rollout in a test. Batch [leaves]."""
        if not self._is_training(environment):
            return await super()._sample_one(environment, iteration, planned, calls)
        context = self._call_context(environment, iteration, calls)
        grower = TreeGrower(environment, self.text_agents, context, self.num_responses, calls.slots)
        tree = iteration * environment.num_rollouts_per_iteration + planned.rollout_id
        return await grower.grow(planned, tree * self._nodes_per_tree)

    def _stage_create_fine_tune_jobs(self, rollouts: NestedArrayDict) -> None:
        """Create a preference job for each learning group."""
        nodes = self._find_nodes(rollouts)
        for name, agents in self.learning_model_groups.items():
            pairs = {agent: self._draw_pairs(rollouts, nodes, agent) for agent in agents}
            self.shared_model_groups[name].create_dpo_fine_tune_job(pairs)

    def _get_log_stats(self, rollouts: NestedArrayDict, *, train: bool = True) -> Metrics:
        """Add statistics of expected rewards of replies, overall and by round.

        ``expected_reward``: the mean over replies; ``positive_proportion``: the share of good ones;
        ``both_proportion``: the share of prompts with both good and bad replies.
        """
        stats = super()._get_log_stats(rollouts, train=train)
        if not train:
            return stats
        nodes = self._find_nodes(rollouts)
        for index, agent in enumerate(self.agent_names):
            acts = self._acts(rollouts, nodes, index)
            expected = self._expected_rewards(rollouts, nodes, index)
            positive = self._positive(expected, agent)
            choices = trees.find_choices(nodes, positive, acts)
            can_act = self.protocol_handler.can_be_active_mask[:, index].any(-1).tolist()
            everywhere = ("", acts, np.ones(len(choices.step), bool))
            rounds = [
                (f"round_{step}.", acts & (nodes.step == step), choices.step == step)
                for step in range(self.max_message_rounds)
                if can_act[step]
            ]
            for label, answers, questions in (everywhere, *rounds):
                stats[f"{agent}.{label}expected_reward"] = _mean(expected[answers])
                stats[f"{agent}.{label}positive_proportion"] = _mean(positive[answers])
                stats[f"{agent}.{label}both_proportion"] = _mean(choices.has_both[questions])
        return stats

    # -- trees -----------------------------------------------------------------------------

    def _find_nodes(self, rollouts: NestedArrayDict) -> trees.TreeNodes:
        node_id = rollouts.array("node_id")
        return trees.find_nodes(node_id, node_id[:, 0] // self._nodes_per_tree)

    @staticmethod
    def _acts(rollouts: NestedArrayDict, nodes: trees.TreeNodes, index: int) -> trees.Flags:
        """Return at which nodes an agent acts, bool[M]."""
        acts: trees.Flags = rollouts.array(("agents", "active"))[nodes.leaf, nodes.step, index]
        return acts

    @staticmethod
    def _expected_rewards(
        rollouts: NestedArrayDict, nodes: trees.TreeNodes, index: int
    ) -> trees.Floats:
        reward = rollouts.array(("agents", "reward"))[:, :, index]
        return trees.expected_rewards(nodes, reward)

    def _positive(self, expected: trees.Floats, agent: str) -> trees.Flags:
        mid_point = self.protocol_handler.reward_mid_point_estimate(agent)
        return trees.positive_responses(expected, mid_point)

    def _draw_pairs(
        self, rollouts: NestedArrayDict, nodes: trees.TreeNodes, agent: str
    ) -> list[PreferencePair]:
        """Sample a pair at each prompt with both good and bad replies of the agent."""
        index = self.agent_names.index(agent)
        positive = self._positive(self._expected_rewards(rollouts, nodes, index), agent)
        valid = rollouts.array(("agents", "valid"))[nodes.leaf, nodes.step, index]
        generator = numpy_generator(
            self.hyper_params.seed, "create_fine_tune_jobs", self.state.iteration, "pairs", agent
        )
        acts = self._acts(rollouts, nodes, index) & valid
        good, bad = trees.draw_pairs(nodes, positive, acts, generator)
        raw = rollouts.array(("agents", "raw_message"))
        prompts = rollouts.array(("agents", "prompt"))
        texts = zip(
            prompts[nodes.leaf[good], nodes.step[good], index].tolist(),
            raw[nodes.leaf[good], nodes.step[good], index].tolist(),
            raw[nodes.leaf[bad], nodes.step[bad], index].tolist(),
            strict=True,
        )
        return [PreferencePair(*pair) for pair in texts]


def _mean(values: trees.Floats | trees.Flags) -> float:
    """Return the mean; NaN if empty."""
    return float(values.mean()) if len(values) else float("nan")


def nodes_per_tree(num_responses: int, num_rounds: int) -> int:
    """Return the number of nodes of a full tree without the root: k + k² + … + k^rounds."""
    return sum(num_responses**depth for depth in range(1, num_rounds + 1))


@dataclass(frozen=True)
class TreeGrower:
    """Grows trees.

    ``num_responses`` is k, the number of replies of the acting agents at each step; ``slots``
    bounds the number of concurrent steps.
    """

    environment: PureTextEnvironment
    agents: Mapping[str, TextActor]
    context: CallContext
    num_responses: int
    slots: asyncio.Semaphore

    async def grow(self, planned: PlannedRollout, first_node: int) -> NestedArrayDict:
        """Grow the tree of one datapoint; return its leaves, batch [at most k^rounds].

        The leaves are ordered from the first branch to the last. All branches have the planned
        seed. ``first_node`` is the id of the node at index 1; others follow by index.
        """
        root = begin_episode(
            self.environment, planned.datapoint_id, planned.seed, planned.rollout_id
        )
        leaves = await self._leaves(root, 0, first_node)
        return concatenate_nested_array_dicts(
            [episode_to_rollout(self.environment, leaf) for leaf in leaves]
        )

    async def _leaves(self, episode: Episode, node: int, first_node: int) -> list[Episode]:
        if episode.done:
            return [episode]
        children = await asyncio.gather(
            *(
                self._grow_child(episode, node * self.num_responses + answer, first_node)
                for answer in range(1, self.num_responses + 1)
            ),
            return_exceptions=True,  # completed calls of the others are billed
        )
        leaves: list[Episode] = []
        for child in children:
            if isinstance(child, BaseException):
                raise child
            leaves += child
        return leaves

    async def _grow_child(self, episode: Episode, node: int, first_node: int) -> list[Episode]:
        """Execute one step and all its descendants."""
        context = replace(self.context, call_prefix=f"r{episode.rollout_id}/n{node}")
        async with self.slots:
            child = await play_step(
                self.environment, self.agents, episode, context, node_id=first_node + node - 1
            )
        return await self._leaves(child, node, first_node)
