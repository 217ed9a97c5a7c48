"""Turns sampled again from an episode's prefixes, with common random numbers.

For replayed credit (:mod:`ratchet.algorithms.replayed_credit`), a turn is redrawn, and everything
after it has the random numbers of the original episode. To measure the effect of an edit, an
agent's last turn is replayed with an edited prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ratchet.errors import RolloutError
from ratchet.rollouts.concatenation import concatenate_nested_array_dicts
from ratchet.scenarios.pure_text.agents.whole_agent import CallContext
from ratchet.scenarios.pure_text.playing import begin_episode, whose_turn
from ratchet.scenarios.pure_text.rollout import episode_to_rollout, play_step
from ratchet.scenarios.pure_text.rules import rules_of
from ratchet.scenarios.pure_text.views import position_of

if TYPE_CHECKING:
    from ratchet.protocols.handler import ProtocolHandler
    from ratchet.rollouts.nested_array_dict import NestedArrayDict
    from ratchet.scenarios.pure_text.environment import PureTextEnvironment
    from ratchet.scenarios.pure_text.episode import AgentAction, Episode, Position
    from ratchet.scenarios.pure_text.rollout import TextActor
    from ratchet.scenarios.pure_text.views import AgentView
    from trainers.text.plans import PlannedRollout


@dataclass(frozen=True, slots=True)
class ContinuedCalls(CallContext):
    """Context of the turns after a redrawn one, with the seeds of the original rollout.

    ``original_prefix`` is the ``call_prefix`` of the original rollout.
    """

    original_prefix: str = ""

    def call_seed(self, call_id: str, attempt: int) -> int:
        """Return the seed of the same turn of the original rollout."""
        turn = call_id.removeprefix(self.call_prefix)
        return CallContext.call_seed(self, self.original_prefix + turn, attempt)


def continued_calls(original: CallContext, call_prefix: str) -> ContinuedCalls:
    """Return a context of the original rollout's seeds whose calls have another prefix."""
    return ContinuedCalls(
        original.journal,
        original.usage,
        call_prefix,
        original.seed,
        original.token_agents,
        original.call_prefix,
    )


def last_turn(
    handler: ProtocolHandler, rollouts: NestedArrayDict, index: int, agent: str
) -> Position:
    """Return the position in which an agent acted last in one of the rollouts [N].

    Its ``prover_stance`` is that at the end of the rollout. Raises RolloutError if it never acted.
    """
    rules = rules_of(handler)
    turns = rollouts["agents", "active"][index, :, rules.places[agent]].nonzero()[0]
    if not len(turns):
        raise RolloutError(f"rollout {index}: the agent {agent!r} has no turn, expected one.")
    return position_of(rules, rollouts, index, int(turns[-1]))


@dataclass
class ReplayedActor:
    """An agent that repeats its reply to the same view instead of calling its model.

    Calls with the same view and seed return the same reply, so that they are not sent.
    """

    actor: TextActor
    replies: dict[tuple[object, ...], AgentAction] = field(default_factory=dict)

    async def act(self, view: AgentView, context: CallContext) -> AgentAction:
        """Return the reply to a view of the episode."""
        seen = (view.round, view.own_raw_messages, view.messages)
        if seen not in self.replies:
            self.replies[seen] = await self.actor.act(view, context)
        return self.replies[seen]


@dataclass(frozen=True)
class Redrawer:
    """Samples rollouts and redraws turns.

    ``redraws`` is the number of alternatives to each turn of an agent, by name.
    """

    environment: PureTextEnvironment
    agents: Mapping[str, TextActor]
    context: CallContext
    redraws: Mapping[str, int]

    async def sample(self, planned: PlannedRollout) -> NestedArrayDict:
        """Return the planned rollout, followed by those redrawn from it.

        The batch is [1 + redraws]; the ``node_id`` of a redrawn step is the index of the agent.
        Calls are sequential, so that their ids do not depend on their duration.
        """
        context = replace(self.context, call_prefix=f"r{planned.rollout_id}")
        replayed = {name: ReplayedActor(actor) for name, actor in self.agents.items()}
        episode = begin_episode(
            self.environment, planned.datapoint_id, planned.seed, planned.rollout_id
        )
        prefixes = []
        while not episode.done:
            prefixes.append(episode)
            episode = await play_step(self.environment, replayed, episode, context)
        episodes = [episode]
        for prefix in prefixes:
            for agent, number in self._turns(prefix):
                episodes.append(await self._redraw(prefix, agent, number, context, replayed))
        return concatenate_nested_array_dicts(
            [episode_to_rollout(self.environment, each) for each in episodes]
        )

    def _turns(self, prefix: Episode) -> Iterator[tuple[str, int]]:
        """Iterate over the agents to redraw at a step, and the numbers of their alternatives."""
        rules = self.environment.rules
        for name, turn in zip(rules.agent_names, whose_turn(rules, prefix), strict=True):
            if turn.channels:
                for number in range(1, self.redraws.get(name, 0) + 1):
                    yield name, number

    async def _redraw(
        self,
        prefix: Episode,
        agent: str,
        number: int,
        original: CallContext,
        replayed: Mapping[str, ReplayedActor],
    ) -> Episode:
        """Redraw an agent's turn with a new seed, and continue with the original ones."""
        name = f"{original.call_prefix}/t{prefix.position.round}.{agent}.{number}"
        episode = await play_step(
            self.environment,
            {**replayed, agent: self.agents[agent]},
            prefix,
            replace(original, call_prefix=name),
            node_id=self.environment.rules.places[agent],
        )
        continued = continued_calls(original, name)
        while not episode.done:
            episode = await play_step(self.environment, replayed, episode, continued)
        return episode
