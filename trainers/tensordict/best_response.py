"""The exact best response to a frozen agent, where another agent sends it a single message.

All its messages are tried on all datapoints. An agent cannot use information it does not see, so it
sends the same message after the same observations: the best message is chosen for each of its
information sets.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDictBase
from tensordict.nn.probabilistic import InteractionType, set_interaction_type
from torch import Tensor, nn

from ratchet.errors import ParameterError
from ratchet.scenarios.environment import Environment
from trainers.results import Table
from trainers.tensordict.testing import TestPlayer, complete_table, environment_for

if TYPE_CHECKING:
    from ratchet.agents.actor_critic import ActorCritic
    from ratchet.protocols.base import ProtocolHandler
    from ratchet.scenarios.tensor_environment import TensorEnvironment
    from trainers.tensordict.rl import TensorDictRlTrainer

MAX_MESSAGES = 4096
"""Largest number of messages to try."""
_IMPOSSIBLE = -1e8
"""Log-probability below which a message is masked."""


@dataclass(frozen=True)
class BestResponse:
    """Decisions of the frozen agents against the best messages of another agent.

    Attributes
    ----------
    agent
        The agent whose messages were tried.
    num_messages
        Their number.
    table
        The test's table, played with the messages of highest reward for ``agent``; among equal
        ones, those with the fewest correct decisions.
    worst
        The same, with the messages with the fewest correct decisions.
    """

    agent: str
    num_messages: int
    table: Table
    worst: Table


def find_best_response(
    trainer: TensorDictRlTrainer, agent: str, dataset: str = "test"
) -> BestResponse:
    """Try all messages of an agent on a dataset, against the others' greedy actions.

    The trainer's agents play the same datapoints as in a test; the state is not changed. With N
    datapoints and M messages, N · M episodes are played. A message to several channels at the same
    time, as in zero-knowledge protocols, is one of all combinations.
    """
    environment: Environment = environment_for(trainer.scenario_instance, dataset)  # type: ignore[assignment]
    length = check_best_response(trainer, environment, agent)
    symbols = environment.message_shape[-1]
    verifiers = list(trainer.protocol_handler.verifier_names)
    tables: list[Table] = []
    refused: list[Tensor] = []
    seen: list[bytes] = []
    with ExitStack() as stack:
        trainer._build_test_context(stack)
        stack.enter_context(set_interaction_type(InteractionType.DETERMINISTIC))
        for symbols_sent in itertools.product(range(symbols), repeat=length):
            forced = _ForcedMessage(trainer.combined_agents, environment, agent, symbols_sent)
            player = TestPlayer(
                environment,
                forced,  # type: ignore[arg-type] # it has the methods that are called
                seed=trainer.hyper_params.seed,
                purpose="best_response",
            )
            table = player.play(trainer.num_test_iterations * player.num_envs)
            complete_table(table, environment.dataset, verifiers, ())
            tables.append(table)
            ids = torch.tensor(table["datapoint_id"])
            refused.append(forced.refused[ids])
            seen = seen or [forced.seen.get(i, b"") for i in ids.tolist()]
    reward = torch.tensor([table[f"reward.{agent}"] for table in tables], dtype=torch.float64)
    correct = torch.tensor([table["correct"] for table in tables], dtype=torch.float64)
    impossible = torch.stack(refused)
    sets = _numbered(seen)
    by_reward = _best(sets, [reward, -correct], impossible)
    by_harm = _best(sets, [-correct, reward], impossible)
    return BestResponse(agent, len(tables), _select(tables, by_reward), _select(tables, by_harm))


def agents_heard(handler: ProtocolHandler) -> list[str]:
    """Return the agents that send messages to the first deciding agent, without deciding."""
    sees = handler.channel_visibility_mask[handler.agent_index(handler.verifier_names[0])]
    return [
        name
        for name in handler.agent_names
        if name not in handler.verifier_names and bool(sees[_channels_written(handler, name)].any())
    ]


def num_turns(handler: ProtocolHandler, agent: str) -> int:
    """Return in how many rounds an agent may send a message."""
    return int(handler.can_be_active_mask[:, handler.agent_index(agent)].any(-1).sum())


def _channels_written(handler: ProtocolHandler, agent: str) -> list[int]:
    active: Tensor = handler.can_be_active_mask[:, handler.agent_index(agent)]
    written: list[int] = active.any(0).nonzero().flatten().tolist()
    return written


def check_best_response(
    trainer: TensorDictRlTrainer, environment: TensorEnvironment, agent: str
) -> int:
    """Return the length of an agent's message; refuse messages that cannot be tried one by one.

    Raises ParameterError as :func:`find_best_response` does.
    """
    handler = trainer.protocol_handler
    where = f"best response of {agent!r}"
    if not isinstance(environment, Environment) or not len(handler.verifier_names):
        raise ParameterError(f"{where}: the agents of this scenario exchange no messages.")
    if agent in handler.verifier_names:
        raise ParameterError(f"{where}: it decides, expected an agent that only sends a message.")
    if environment.num_linear_symbols is not None:
        raise ParameterError(f"{where}: got a linear message space, expected messages of symbols.")
    turns = num_turns(handler, agent)
    if turns != 1:
        raise ParameterError(
            f"{where}: it sends {turns} messages in an episode, expected one: with several, the"
            " possibilities are too many to try. Train an attacker instead."
        )
    if any(isinstance(part, nn.BatchNorm1d) for part in trainer.combined_agents.modules()):
        raise ParameterError(
            f"{where}: agents with batch normalisation (use_batch_norm) decide by the other"
            " datapoints of a batch, so that messages cannot be tried one by one."
        )
    _, positions, symbols = environment.message_shape
    length = len(_channels_written(handler, agent)) * positions
    if symbols**length > MAX_MESSAGES:
        raise ParameterError(
            f"{where}: got {symbols}^{length} possible messages, expected at most"
            f" {MAX_MESSAGES:,}. Train an attacker instead."
        )
    return length


class _ForcedMessage:
    """Agents of which one always sends the same message; records its earlier observations."""

    def __init__(
        self, agents: ActorCritic, environment: Environment, name: str, symbols: Sequence[int]
    ) -> None:
        handler = environment.protocol_handler
        self._agents = agents
        self._name = name
        self._index = handler.agent_index(name)
        channels = _channels_written(handler, name)
        self._message = torch.zeros(environment.message_shape[:2], dtype=torch.int64)
        self._message[channels] = torch.tensor(symbols).view(len(channels), -1)
        self._message = self._message.to(environment.device)
        visible = handler.channel_visibility_mask[self._index]
        self._visible = visible.nonzero().flatten().to(environment.device)
        self._data = [environment.dataset[key] for key in environment.data_seen_by(name)]
        num_datapoints = len(environment.dataset)
        self.refused = torch.zeros(num_datapoints, dtype=torch.bool)
        self.seen: dict[int, bytes] = {}

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 -- of the agents
        return getattr(self._agents, name)

    def act(self, td: TensorDictBase, **options: Any) -> TensorDictBase:  # noqa: ANN401
        """Act as the agents do, except for the message."""
        self._agents.act(td, **options)
        acts = td.get(("agents", "active"))[:, self._index].any(-1)
        if not bool(acts.any()):
            return td
        messages = td.get(("agents", "message")).clone()
        messages[:, self._index] = self._message
        td.set(("agents", "message"), messages)
        score = self._agents.evaluate(td, agents=[self._name]).get(("agents", "log_prob"))
        ids = td.get("datapoint_id")[acts].cpu()
        self.refused[ids] |= (score[:, self._index] < _IMPOSSIBLE)[acts].cpu()
        heard = td.get("x")[acts].index_select(2, self._visible).cpu().numpy()
        for row, datapoint in enumerate(ids.tolist()):
            data = b"".join(column[datapoint].cpu().numpy().tobytes() for column in self._data)
            self.seen[datapoint] = data + heard[row].tobytes()
        return td


def _numbered(values: Sequence[bytes]) -> Tensor:
    """Number distinct values in the order of appearance: int64 [N]."""
    numbers: dict[bytes, int] = {}
    return torch.tensor([numbers.setdefault(value, len(numbers)) for value in values])


def _best(sets: Tensor, criteria: Sequence[Tensor], impossible: Tensor) -> Tensor:
    """Return the best message for each datapoint, int64 [N].

    ``sets`` int64 [N] are information sets, ``criteria`` f64 [M, N] are maximised in their order,
    on average over a set; ``impossible`` bool [M, N] excludes messages.
    """
    num_sets = int(sets.max()) + 1
    allowed = torch.zeros(len(impossible), num_sets).index_add(1, sets, impossible.float()) == 0
    for criterion in criteria:
        total = torch.zeros(len(criterion), num_sets, dtype=torch.float64)
        total = total.index_add(1, sets, criterion).masked_fill(~allowed, -torch.inf)
        allowed &= total >= total.max(0).values - 1e-9
    return allowed.int().argmax(0)[sets]


def _select(tables: Sequence[Table], choice: Tensor) -> Table:
    """Return a table with each datapoint's row of the table that was chosen for it."""
    rows = choice.tolist()
    return {
        name: [tables[table][name][row] for row, table in enumerate(rows)] for name in tables[0]
    }
