"""Batched environments in which agents exchange messages about datapoints, and their specs.

One step advances all episodes with tensor operations only. Scenarios subclass ``Environment`` and
define the number of symbols and the data that agents see; protocols define who acts and how agents
are rewarded. Shape letters: E parallel episodes, A agents, C channels, P message positions,
S symbols, R rounds, L linear symbols.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ratchet.errors import DataError
from ratchet.scenarios.dataset import TensorDictDataset
from ratchet.scenarios.tensor_environment import (
    COUNTED_DECISION,
    Key,
    RolloutShape,
    TensorEnvironment,
    check_new_episodes,
    rollout_shape,
)

if TYPE_CHECKING:
    from torchrl.data import Composite

    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.protocols.base import ProtocolHandler

MAX_SEED = 2**63 - 1

MUST_GO_ON = 1
"""The decision restriction in rounds in which decisions don't count; 0 stands for none."""


@dataclass(frozen=True)
class EnvironmentSpecs:
    """Specs from sizes: E episodes, A agents, R rounds, (C, P, S) of messages, L symbols."""

    batch_size: torch.Size
    num_agents: int
    max_rounds: int
    message_shape: tuple[int, int, int]
    num_linear_symbols: int | None
    num_datapoints: int
    device: torch.device

    @cached_property
    def observation(self) -> Composite:
        """Rounds, messages and whose turn it is."""
        channels, _, _ = self.message_shape
        observation = self._composite(
            round=self._categorical(self.max_rounds),
            seed=self._categorical(MAX_SEED),
            decision_restriction=self._categorical(3),
            x=self._counts(self.max_rounds, *self.message_shape),
            message=self._counts(*self.message_shape),
            agents=self._composite(
                active=self._binary(self.num_agents, channels),
                can_decide=self._binary(self.num_agents),
            ),
        )
        if self.num_linear_symbols is not None:
            observation["linear_message_history"] = self._counts(
                self.max_rounds, channels, self.num_linear_symbols
            )
        return observation

    @cached_property
    def action(self) -> Composite:
        """Messages and decisions of all agents."""
        channels, positions, symbols = self.message_shape
        agents = self._composite(
            message=self._categorical(symbols, self.num_agents, channels, positions),
            decision=self._categorical(3, self.num_agents),
        )
        if self.num_linear_symbols is not None:
            agents["linear_message"] = self._categorical(self.num_linear_symbols, self.num_agents)
        return self._composite(agents=agents)

    @cached_property
    def state(self) -> Composite:
        """The label and the datapoint's index."""
        return self._composite(
            y=self._categorical(2), datapoint_id=self._categorical(self.num_datapoints)
        )

    @cached_property
    def reward(self) -> Composite:
        """A reward for each agent."""
        from torchrl.data import Unbounded

        shape = (*self.batch_size, self.num_agents)
        return self._composite(agents=self._composite(reward=Unbounded(shape, device=self.device)))

    @cached_property
    def done(self) -> Composite:
        """Ends of the episode and of each agent's part in it."""
        return self._composite(
            done=self._binary(),
            terminated=self._binary(),
            agents=self._composite(
                done=self._binary(self.num_agents), terminated=self._binary(self.num_agents)
            ),
        )

    def _composite(self, **specs: Any) -> Composite:  # noqa: ANN401 -- any spec
        from torchrl.data import Composite

        return Composite(specs, shape=self.batch_size, device=self.device)

    def _categorical(self, n: int, *shape: int) -> Any:  # noqa: ANN401 -- untyped library
        from torchrl.data import Categorical

        return Categorical(n, (*self.batch_size, *shape), device=self.device, dtype=torch.int64)

    def _binary(self, *shape: int) -> Any:  # noqa: ANN401 -- untyped library
        from torchrl.data import Categorical

        return Categorical(2, (*self.batch_size, *shape), device=self.device, dtype=torch.bool)

    def _counts(self, *shape: int) -> Any:  # noqa: ANN401 -- untyped library
        """Return the spec of the number of agents that sent a symbol."""
        from torchrl.data import Bounded

        return Bounded(
            0, self.num_agents, (*self.batch_size, *shape), device=self.device, dtype=torch.uint8
        )


class Environment(TensorEnvironment):
    """Environment of a protocol, with episodes about one datapoint each.

    The state is a tensordict [E]: ``round``, ``seed``, ``y``, ``datapoint_id``,
    ``decision_restriction`` int64; ``x`` (all messages so far, one-hot) uint8 [E, R, C, P, S];
    ``message`` (the latest in each channel) uint8 [E, C, P, S]; ``linear_message_history`` uint8
    [E, R, C, L] if there is a linear message space; ``done``, ``terminated`` bool; and under
    ``agents``: ``done``, ``terminated``, ``can_decide`` bool [E, A], ``active`` bool [E, A, C]. No
    agent is active after the end of its episode or after it is done.

    ``done`` means that the episode is over, decided or truncated; ``terminated``, as in protocols,
    that it was truncated without a decision. Both are true ends, so returns are not bootstrapped
    after ``done``; ``("agents", "terminated")`` therefore equals ``("agents", "done")``.

    Raises
    ------
    DataError
        If the dataset lacks ``y`` or one of ``data_keys``.
    ParameterError
        If the numbers of frames don't fit.
    """

    outcome_keys: tuple[Key, ...] = (
        "done",
        "terminated",
        ("agents", "done"),
        ("agents", "reward"),
    )
    data_keys: ClassVar[tuple[str, ...]] = ()
    """The dataset's fields that agents see."""

    def __init__(
        self,
        hyper_params: HyperParameters,
        dataset: TensorDictDataset,
        protocol_handler: ProtocolHandler,
        *,
        train: bool,
        device: str | torch.device = "cpu",
    ) -> None:
        missing = [key for key in ("y", *self.data_keys) if key not in dataset.fields]
        if missing:
            raise DataError(
                f"{type(self).__name__}: the dataset has no {missing}, expected"
                f" {['y', *self.data_keys]}; got {dataset.fields}."
            )
        super().__init__(hyper_params, dataset, protocol_handler, train=train, device=device)
        if self._forces_decisions:
            self.outcome_keys = (*self.outcome_keys, COUNTED_DECISION)

    @property
    def _forces_decisions(self) -> bool:
        return self.protocol_handler.common.force_guess is not None

    def _rollout_shape(self) -> RolloutShape:
        rl = self.hyper_params.rl
        rounds = self.protocol_handler.played_message_rounds
        return rollout_shape(rl, rounds, len(self.dataset), train=self.train)

    @property
    @abstractmethod
    def num_symbols(self) -> int:
        """S, the size of the message space."""

    @property
    def max_rounds(self) -> int:
        """R, the protocol's maximum."""
        return self.protocol_handler.max_message_rounds

    @property
    def message_shape(self) -> tuple[int, int, int]:
        """C, P and S."""
        handler = self.protocol_handler
        return handler.num_channels, self.hyper_params.message_size, self.num_symbols

    @property
    def num_linear_symbols(self) -> int | None:
        """L; None without a linear message space."""
        if not self.hyper_params.include_linear_message_space:
            return None
        return self.hyper_params.d_linear_message_space

    def data_seen_by(self, agent_name: str) -> tuple[str, ...]:
        """Return the dataset's fields that an agent sees; by default all of ``data_keys``."""
        return self.data_keys

    def gather_data(self, datapoint_id: Tensor) -> TensorDictBase:
        """Return the data that agents see of datapoints int64 [*B], a batch [*B] without labels."""
        return self._visible_data[datapoint_id]

    def reset(self, ids: Tensor | None = None, seeds: Tensor | None = None) -> TensorDict:
        """Start episodes about datapoints int64 [E], with seeds int64 [E]: first states [E]."""
        ids, seeds = self.new_episodes(ids, seeds)
        size = ids.shape[0]
        zeros = torch.zeros(size, dtype=torch.int64, device=self.device)
        over = torch.zeros(size, dtype=torch.bool, device=self.device)
        nobody = over[:, None].expand(size, self.protocol_handler.num_agents).clone()
        history = (size, self.max_rounds, *self.message_shape)
        state = TensorDict(
            {
                "round": zeros,
                "seed": seeds,
                "y": self.dataset["y"][ids],
                "datapoint_id": ids,
                "x": torch.zeros(history, dtype=torch.uint8, device=self.device),
                "message": torch.zeros(
                    (size, *self.message_shape), dtype=torch.uint8, device=self.device
                ),
                "done": over,
                "terminated": over.clone(),
                "agents": {"done": nobody, "terminated": nobody.clone()},
            },
            batch_size=[size],
        )
        if self.num_linear_symbols is not None:
            shape = (size, self.max_rounds, self.message_shape[0], self.num_linear_symbols)
            state["linear_message_history"] = torch.zeros(
                shape, dtype=torch.uint8, device=self.device
            )
        return self._add_turns(state)

    def step(self, td: TensorDictBase) -> TensorDict:
        """Apply the agents' actions to states [E], which are not modified; return the next ones.

        States have actions under ``agents``: ``message`` int64 [E, A, C, P] and ``decision`` int64
        [E, A]; ``linear_message`` int64 [E, A] if that space exists; and the logits that the
        protocol reads, if any. The next states have ``("agents", "reward")`` float32 [E, A], and
        with ``force_guess`` the ``counted_decision`` int64 [E, A] of each. Actions out of turn have
        no effect. An ended episode does not change.
        """
        outcome = self.protocol_handler.step_interaction_protocol(td)
        over = outcome.shared_done | outcome.terminated
        agent_over = outcome.agent_done | over.unsqueeze(-1)
        state = TensorDict(
            {
                "round": torch.where(over, td["round"], td["round"] + 1),
                **{key: td[key] for key in ("seed", "y", "datapoint_id")},
                **self._next_messages(td),
                "done": over,
                "terminated": outcome.terminated,
                "agents": {
                    "done": agent_over,
                    "terminated": agent_over.clone(),
                    "reward": outcome.reward,
                },
            },
            batch_size=td.batch_size,
        )
        if self._forces_decisions:
            state[COUNTED_DECISION] = self.protocol_handler.counted_decisions(td)
        return self._add_turns(state)

    def reset_where(
        self, td: TensorDictBase, mask: Tensor, ids: Tensor, seeds: Tensor
    ) -> TensorDict:
        """Start new episodes where ``mask`` bool [E] is true, and keep the other states.

        Ids and seeds are int64 [k], one for each true value of ``mask``, in order. The states [E],
        e.g. the result of :meth:`step`, are not modified; the returned ones have no rewards.
        """
        state = td.select(*self._state_keys).clone()
        where = check_new_episodes(mask, ids, seeds)
        if len(where):
            state[where] = self.reset(ids, seeds)
        return state

    @cached_property
    def specs(self) -> EnvironmentSpecs:
        """The specs of all values, for TorchRL."""
        return EnvironmentSpecs(
            batch_size=self.batch_size,
            num_agents=self.protocol_handler.num_agents,
            max_rounds=self.max_rounds,
            message_shape=self.message_shape,
            num_linear_symbols=self.num_linear_symbols,
            num_datapoints=len(self.dataset),
            device=self.device,
        )

    @property
    def observation_spec(self) -> Composite:
        """Specs of observations."""
        return self.specs.observation

    @property
    def action_spec(self) -> Composite:
        """Specs of actions."""
        return self.specs.action

    @property
    def action_keys(self) -> list[Key]:
        """Messages and decisions, and linear messages where there are any."""
        return list(self.action_spec.keys(include_nested=True, leaves_only=True))

    @property
    def state_spec(self) -> Composite:
        """Specs of values of the state that are not observed."""
        return self.specs.state

    @property
    def reward_spec(self) -> Composite:
        """Specs of rewards."""
        return self.specs.reward

    @property
    def done_spec(self) -> Composite:
        """Specs of the end of the episode and of each agent in it."""
        return self.specs.done

    @cached_property
    def _visible_data(self) -> TensorDictBase:
        return self.dataset.td.select(*self.data_keys)

    @cached_property
    def _symbols(self) -> Tensor:
        """int64 [S]."""
        return torch.arange(self.num_symbols, device=self.device)

    @cached_property
    def _state_keys(self) -> list[str | tuple[str, str]]:
        ids = torch.zeros(1, dtype=torch.int64, device=self.device)
        return list(self.reset(ids, ids).keys(include_nested=True, leaves_only=True))

    def _next_messages(self, td: TensorDictBase) -> dict[str, Tensor]:
        """Write active agents' messages into the histories; messages in one channel add up."""
        active = td["agents", "active"]
        sent = td["agents", "message"].unsqueeze(-1) == self._symbols
        sent = self._transmit(sent & active[..., None, None], td).sum(1, dtype=torch.uint8)
        written = active.any(1)
        rows = torch.arange(len(sent), device=sent.device)
        x = td["x"].clone()
        # Only where something is written, since an ended episode stays in its last round.
        at_round = x[rows, td["round"]]
        fresh = written[..., None, None]
        x[rows, td["round"]] = torch.where(fresh, sent, at_round)
        messages = {"x": x, "message": torch.where(fresh, sent, td["message"])}
        if self.num_linear_symbols is not None:
            symbols = torch.arange(self.num_linear_symbols, device=sent.device)
            linear = td["agents", "linear_message"].unsqueeze(-1) == symbols
            linear = (linear.unsqueeze(2) & active.unsqueeze(-1)).sum(1, dtype=torch.uint8)
            history = td["linear_message_history"].clone()
            before = history[rows, td["round"]]
            history[rows, td["round"]] = torch.where(written.unsqueeze(-1), linear, before)
            messages["linear_message_history"] = history
        return messages

    def _transmit(self, sent: Tensor, td: TensorDictBase) -> Tensor:
        """Return the messages that arrive, one-hot bool [E, A, C, P, S]: all by default."""
        return sent

    def _add_turns(self, state: TensorDict) -> TensorDict:
        """Write into states who may act and decide in them."""
        handler = self.protocol_handler
        rounds, seeds = state["round"], state["seed"]
        playing = ~state["agents", "done"]
        active = handler.get_active_agents_mask_from_rounds_and_seed(rounds, seeds)
        can_decide = handler.get_can_decide_mask_from_rounds_and_seed(rounds, seeds)
        state["agents", "active"] = active & playing.unsqueeze(-1)
        state["agents", "can_decide"] = can_decide & playing
        too_early = rounds < handler.min_message_rounds - 1
        state["decision_restriction"] = too_early.to(torch.int64) * MUST_GO_ON
        return state
