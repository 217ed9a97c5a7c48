"""MALT: trees of rollouts, and preferences between replies to the same prompt.

Source: Motwani et al., "MALT: Improving Reasoning with Multi-Agent LLM Training" (2024).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ratchet.algorithms import preference_trees as trees
from ratchet.scenarios.pure_text.agents.examples import PreferencePair
from ratchet.seeding import numpy_generator
from trainers.named import register_trainer
from trainers.text.base import PureTextRlTrainer
from trainers.text.tree_sampling import TreeGrower, nodes_per_tree

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.rollouts.nested_array_dict import NestedArrayDict
    from ratchet.scenarios.pure_text.environment import PureTextEnvironment
    from trainers.text.plans import PlannedRollout
    from trainers.text.sampling import Calls
    from trainers.text.staged import Metrics


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
        for place, agent in enumerate(self.agent_names):
            acts = self._acts(rollouts, nodes, place)
            expected = self._expected_rewards(rollouts, nodes, place)
            positive = self._positive(expected, agent)
            choices = trees.find_choices(nodes, positive, acts)
            can_act = self.protocol_handler.can_be_active_mask[:, place].any(-1).tolist()
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
    def _acts(rollouts: NestedArrayDict, nodes: trees.TreeNodes, place: int) -> trees.Flags:
        """Return at which nodes an agent acts, bool[M]."""
        acts: trees.Flags = rollouts.array(("agents", "active"))[nodes.leaf, nodes.step, place]
        return acts

    @staticmethod
    def _expected_rewards(
        rollouts: NestedArrayDict, nodes: trees.TreeNodes, place: int
    ) -> trees.Floats:
        reward = rollouts.array(("agents", "reward"))[:, :, place]
        return trees.expected_rewards(nodes, reward)

    def _positive(self, expected: trees.Floats, agent: str) -> trees.Flags:
        mid_point = self.protocol_handler.reward_mid_point_estimate(agent)
        return trees.positive_responses(expected, mid_point)

    def _draw_pairs(
        self, rollouts: NestedArrayDict, nodes: trees.TreeNodes, agent: str
    ) -> list[PreferencePair]:
        """Sample a pair at each prompt with both good and bad replies of the agent."""
        place = self.agent_names.index(agent)
        positive = self._positive(self._expected_rewards(rollouts, nodes, place), agent)
        valid = rollouts.array(("agents", "valid"))[nodes.leaf, nodes.step, place]
        generator = numpy_generator(
            self.hyper_params.seed, "create_fine_tune_jobs", self.state.iteration, "pairs", agent
        )
        acts = self._acts(rollouts, nodes, place) & valid
        good, bad = trees.draw_pairs(nodes, positive, acts, generator)
        raw = rollouts.array(("agents", "raw_message"))
        prompts = rollouts.array(("agents", "prompt"))
        texts = zip(
            prompts[nodes.leaf[good], nodes.step[good], place].tolist(),
            raw[nodes.leaf[good], nodes.step[good], place].tolist(),
            raw[nodes.leaf[bad], nodes.step[bad], place].tolist(),
            strict=True,
        )
        return [PreferencePair(*pair) for pair in texts]


def _mean(values: trees.Floats | trees.Flags) -> float:
    """Return the mean; NaN if empty."""
    return float(values.mean()) if len(values) else float("nan")
