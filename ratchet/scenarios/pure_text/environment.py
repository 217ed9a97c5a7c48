"""Environments in which chat models exchange text about datapoints, and their specs.

``reset`` and ``step`` accept any batch and play its episodes one at a time, as
:mod:`ratchet.scenarios.pure_text.playing` does. Shape letters: B episodes, R rounds, A agents, C
channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from ratchet.errors import DataError
from ratchet.parameters.text_trainers import count_rollouts
from ratchet.rollouts.dataset import DataOrder
from ratchet.rollouts.nested_array_dict import NestedArrayDict
from ratchet.rollouts.specs import (
    NO_DECISION,
    NOBODY,
    BoolArraySpec,
    CompositeSpec,
    FloatArraySpec,
    IntArraySpec,
    StringArraySpec,
)
from ratchet.scenarios.pure_text.agents.whole_agent import AgentOutput
from ratchet.scenarios.pure_text.episode import Episode, Position
from ratchet.scenarios.pure_text.playing import advance_episode, begin_episode
from ratchet.scenarios.pure_text.rules import RoundRules, rules_of
from ratchet.scenarios.pure_text.views import position_of, write_position
from ratchet.seeding import derive_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.protocols.handler import ProtocolHandler
    from ratchet.rollouts.dataset import NestedArrayDictDataset

DATA_KEYS = ("question", "solution", "y", "datapoint_id")
Integers: TypeAlias = npt.NDArray[np.int64]
Booleans: TypeAlias = npt.NDArray[np.bool_]
Floats: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True)
class TextEnvironmentSpecs:
    """Specs of an environment; its batch size is open, since ``reset`` takes any number."""

    num_rounds: int
    num_agents: int
    num_channels: int

    @cached_property
    def observation(self) -> CompositeSpec:
        """Specs of observations, of which each agent sees a part."""
        return CompositeSpec(
            {
                "question": StringArraySpec(),
                "solution": StringArraySpec(),
                **self._history,
                "round": IntArraySpec(low=0, high=self.num_rounds - 1),
                "seed": IntArraySpec(),
                "prover_stance": IntArraySpec(nothing=1, low=0, high=1),
                "datapoint_id": IntArraySpec(),
            }
        )

    @cached_property
    def state(self) -> CompositeSpec:
        """Specs of values of the state that no agent sees."""
        return CompositeSpec({"y": IntArraySpec(low=0, high=1)})

    @cached_property
    def action(self) -> CompositeSpec:
        """Specs of actions."""
        agents = (self.num_agents,)
        return CompositeSpec(
            {
                "agents": {
                    "message": StringArraySpec((self.num_agents, self.num_channels)),
                    "raw_message": StringArraySpec(agents),
                    "decision": IntArraySpec(agents, nothing=NO_DECISION, low=0, high=NO_DECISION),
                }
            }
        )

    @cached_property
    def reward(self) -> CompositeSpec:
        """Specs of rewards."""
        return CompositeSpec({"agents": {"reward": FloatArraySpec((self.num_agents,))}})

    @cached_property
    def done(self) -> CompositeSpec:
        """Specs of the end of the episode and of each agent in it."""
        return CompositeSpec(
            {
                "done": BoolArraySpec(),
                "terminated": BoolArraySpec(),
                "agents": {"done": BoolArraySpec((self.num_agents,))},
            }
        )

    def blank_state(self, size: int) -> NestedArrayDict:
        """Create states [size] without messages."""
        blank = NestedArrayDict({}, size)
        for spec in (self.observation, self.state, self.done):
            blank.update(spec.blank(size))
        return blank

    @property
    def _history(self) -> dict[str, StringArraySpec | IntArraySpec]:
        channels = (self.num_rounds, self.num_channels)
        return {
            "message_history": StringArraySpec(channels),
            "message_agent_id": IntArraySpec(
                channels, nothing=NOBODY, low=NOBODY, high=self.num_agents - 1
            ),
            "raw_message_history": StringArraySpec((self.num_rounds, self.num_agents)),
        }


class PureTextEnvironment:
    """Environment of a protocol in text, with episodes about one datapoint each.

    The state is a NestedArrayDict [B]: ``question``, ``solution`` text; ``y``, ``datapoint_id``,
    ``seed``, ``prover_stance``, ``round`` int64; ``message_history`` text [B, R, C] and
    ``message_agent_id`` int64 [B, R, C] (-1 for none); ``raw_message_history`` text [B, R, A];
    ``done`` (decided or truncated), ``terminated`` (truncated) bool; ``("agents", "done")`` bool
    [B, A].

    Parameters
    ----------
    hyper_params
        Uses ``seed``, ``rl.rollouts_per_iteration`` and ``text_rl.rollouts_per_datapoint``.
    dataset
        With ``question``, ``solution``, ``datapoint_id`` and, without ``label``, ``y``.
    label
        See :attr:`ratchet.scenarios.pure_text.base.TextScenario.label`.
    """

    def __init__(
        self,
        hyper_params: HyperParameters,
        dataset: NestedArrayDictDataset,
        protocol_handler: ProtocolHandler,
        *,
        train: bool,
        label: Callable[[Position], int] | None = None,
    ) -> None:
        required = [key for key in DATA_KEYS if key != "y" or label is None]
        missing = [key for key in required if key not in dataset.fields]
        if missing:
            raise DataError(
                f"{type(self).__name__}: the dataset has no {missing}, expected"
                f" {required}; got {dataset.fields}."
            )
        self.hyper_params = hyper_params
        agents = [hyper_params.agents[name] for name in protocol_handler.agent_names]
        self.asks_for_tokens = any(a.logprobs or a.return_token_ids for a in agents)
        self.dataset = dataset
        self.protocol_handler = protocol_handler
        self.train = train
        self.label = label
        self.rules: RoundRules = rules_of(protocol_handler)
        self._begun = 0

    @property
    def max_rounds(self) -> int:
        """R, the protocol's maximum."""
        return self.protocol_handler.max_message_rounds

    @property
    def num_rollouts_per_iteration(self) -> int:
        """Episodes in one iteration: as configured in training, else one per datapoint."""
        if not self.train:
            return len(self.dataset)
        rollouts_per_iteration: int | None = self.hyper_params.rl.rollouts_per_iteration
        return count_rollouts(self.hyper_params.text_rl, rollouts_per_iteration, len(self.dataset))

    @property
    def num_envs(self) -> int:
        """The same: every episode of an iteration is a separate environment."""
        return self.num_rollouts_per_iteration

    @property
    def frames_per_batch(self) -> int:
        """Steps in one iteration, those after an episode's end included."""
        return self.num_rollouts_per_iteration * self.max_rounds

    @property
    def batch_size(self) -> tuple[int, ...]:
        """[B] of one iteration."""
        return (self.num_rollouts_per_iteration,)

    def prover_stance(self, seed: int) -> int:
        """Return the stance of a single prover, 0 or 1, in the episode of a seed.

        1 unless ``protocol_common.randomize_prover_stance``.
        """
        if not self.protocol_handler.common.randomize_prover_stance:
            return 1
        return derive_seed(seed, "prover_stance") & 1

    @cached_property
    def specs(self) -> TextEnvironmentSpecs:
        """Specs of all values."""
        handler = self.protocol_handler
        return TextEnvironmentSpecs(self.max_rounds, handler.num_agents, handler.num_channels)

    @property
    def observation_spec(self) -> CompositeSpec:
        """Specs of observations, of which each agent sees a part."""
        return self.specs.observation

    @property
    def action_spec(self) -> CompositeSpec:
        """Specs of actions."""
        return self.specs.action

    @property
    def state_spec(self) -> CompositeSpec:
        """Specs of values of the state that no agent sees."""
        return self.specs.state

    @property
    def reward_spec(self) -> CompositeSpec:
        """Specs of rewards."""
        return self.specs.reward

    @property
    def done_spec(self) -> CompositeSpec:
        """Specs of the end of the episode and of each agent in it."""
        return self.specs.done

    def reset(
        self,
        datapoint_ids: Sequence[int] | Integers | None = None,
        seeds: Sequence[int] | Integers | None = None,
    ) -> NestedArrayDict:
        """Return first states [B] of indices in the dataset, int64 [B], and seeds, int64 [B].

        By default, uses the next :attr:`batch_size` datapoints of an internal order, and their
        positions in that order, which are not part of the state.
        """
        start = self._begun
        if datapoint_ids is None:
            order = DataOrder(self.hyper_params.seed, len(self.dataset), purpose="reset")
            datapoint_ids = order.take(start, self.num_rollouts_per_iteration)
            self._begun += len(datapoint_ids)
        if seeds is None:
            seeds = np.arange(start, start + len(datapoint_ids))
        state = self.specs.blank_state(len(datapoint_ids))
        for row, (index, seed) in enumerate(zip(datapoint_ids, seeds, strict=True)):
            self._write(begin_episode(self, int(index), int(seed)), state, row)
        return state

    def active_agents(self, state: NestedArrayDict) -> Booleans:
        """Return which agents act in which channels, bool [B, A, C]; none after the end."""
        handler = self.protocol_handler
        active = handler.get_active_agents_mask_from_rounds_and_seed(state["round"], state["seed"])
        playing = ~(state["done"][:, None] | state["agents", "done"])
        acts: Booleans = active.numpy() & playing[..., None]
        return acts

    def step(
        self, state: NestedArrayDict, outputs: NestedArrayDict
    ) -> tuple[NestedArrayDict, Floats]:
        """Apply the agents' actions.

        Parameters
        ----------
        state
            States [B], which are not modified.
        outputs
            ``("agents", "message")`` text [B, A, C], ``("agents", "raw_message")`` text [B, A]
            and ``("agents", "decision")`` int64 [B, A]; if given, ``("agents", "confidence")``
            float64 [B, A], of decisions, and ``("agents", "valid")`` bool [B, A], of replies.

        Returns
        -------
        next_state
            States [B]. Actions out of turn have no effect. An ended episode does not change.
        reward
            float32 [B, A].
        """
        following = state.clone()
        reward = np.zeros((len(state), len(self.rules.agent_names)), np.float32)
        for row in np.flatnonzero(~state["done"]).tolist():
            episode = self._read(state, row)
            after = advance_episode(self, episode, self._read_actions(outputs, row))
            self._write(after, following, row)
            reward[row] = after.steps[-1].rewards
        return following, reward

    def _read(self, state: NestedArrayDict, row: int) -> Episode:
        """Return an unfinished episode, without its steps."""
        agents_done = tuple(state["agents", "done"][row].tolist())
        return Episode(row, int(state["y"][row]), position_of(self.rules, state, row), agents_done)

    def _write(self, episode: Episode, state: NestedArrayDict, row: int) -> None:
        write_position(self.rules, episode.position, state, row)
        state["y"][row], state["round"][row] = episode.y, episode.position.round
        state["done"][row], state["terminated"][row] = episode.done, episode.terminated
        state["agents", "done"][row] = episode.agents_done

    def _read_actions(self, outputs: NestedArrayDict, row: int) -> dict[str, AgentOutput]:
        agents = outputs[row].nested("agents")
        actions = {}
        for index, name in enumerate(self.rules.agent_names):
            texts = zip(self.rules.channel_names, agents["message"][index], strict=True)
            actions[name] = AgentOutput(
                messages={channel: text for channel, text in texts if text is not None},
                raw_message=agents["raw_message"][index],
                decision=int(agents["decision"][index]),
                confidence=float(agents["confidence"][index]) if "confidence" in agents else 1.0,
                valid=bool(agents["valid"][index]) if "valid" in agents else True,
            )
        return actions
