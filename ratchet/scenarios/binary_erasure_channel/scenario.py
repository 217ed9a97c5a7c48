"""Erasure-channel game: a prover sends a symbol about a bit over a channel that may erase it.

The dataset contains every combination of bit, observation and erasure as often as its probability
requires, up to rounding, so that the analytic solution holds for the dataset itself and not only on
average.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torch.nn import functional as F

from ratchet.agents.building import POOLED, SYMBOLS, AgentBuilder, AgentPlan
from ratchet.agents.networks.layers import Initializer, Mlp, NormAndNoise
from ratchet.agents.parts import AgentBody, AgentInput, Perception, Prepared, Representation
from ratchet.errors import ParameterError
from ratchet.scenarios.base import VALIDATION
from ratchet.scenarios.binary_erasure_channel.parameters import BinaryErasureChannelAgentParameters
from ratchet.scenarios.dataset import TensorDictDataset
from ratchet.scenarios.environment import Environment
from ratchet.scenarios.registry import register_scenario
from ratchet.scenarios.tensor_scenario import MessageScenario
from ratchet.seeding import torch_generator

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.scenarios.binary_erasure_channel.parameters import BinaryErasureChannelParameters

GENERATED = "generated"
ERASED = 2
"""Observation of an erased bit."""

NUM_SYMBOLS = 2
NUM_SIGHTS = ERASED + 1


def build_erasure_datasets(hyper_params: HyperParameters) -> dict[str, TensorDictDataset]:
    """Create ``train``, ``test``, and ``validation`` if it has a size."""
    section: BinaryErasureChannelParameters = hyper_params.binary_erasure_channel
    if hyper_params.dataset != GENERATED:
        raise ParameterError(
            f"dataset: got {hyper_params.dataset!r}, expected {GENERATED!r}, the only dataset of"
            " scenario binary_erasure_channel; its section sets how it is generated."
        )
    total, validation_size = section.num_datapoints, hyper_params.validation.size
    num_test, num_validation = (
        round(total * size) for size in (hyper_params.test_size, validation_size)
    )
    num_train = total - num_test - num_validation
    if min(num_test, num_train) < 1:
        raise ParameterError(
            f"test_size: {hyper_params.test_size} of {total} deals, with validation.size"
            f" {validation_size}, leaves {num_test} for testing and {num_train} for training,"
            " expected at least one of each."
        )
    seed = hyper_params.seed if section.dataset_seed is None else section.dataset_seed
    sizes = {"train": num_train, "test": num_test, VALIDATION: num_validation}
    datasets = {side: _deal(section, size, seed, side) for side, size in sizes.items() if size}
    datasets["train"] = datasets["train"].take(hyper_params.dataset_options.max_train_size)
    return datasets


def _deal(
    section: BinaryErasureChannelParameters, size: int, seed: int, side: str
) -> TensorDictDataset:
    """Create the deals of one side, in random order.

    They have ``bit``, ``observation`` (the bit or 2) and ``y`` (the bit) int64, ``lie_erased``
    bool, [N].
    """
    unseen, erased = section.observation_erasure_probability, section.lie_erasure_probability
    chances = {
        (bit, observation, lie_erased): 0.5 * of_look * of_channel
        for bit in (0, 1)
        for observation, of_look in ((bit, 1 - unseen), (ERASED, unseen))
        for lie_erased, of_channel in ((0, 1 - erased), (1, erased))
    }
    counts = torch.tensor(_whole_numbers(list(chances.values()), size))
    rows = torch.tensor(list(chances)).repeat_interleave(counts, dim=0)
    order = torch.randperm(
        size, generator=torch_generator(seed, "binary_erasure_channel", purpose=side)
    )
    bit, observation, lie_erased = rows[order].unbind(1)
    fields = {
        "bit": bit,
        "observation": observation,
        "lie_erased": lie_erased.bool(),
        "y": bit.clone(),
    }
    return TensorDictDataset(TensorDict(fields, batch_size=[size]))


def _whole_numbers(chances: list[float], total: int) -> list[int]:
    """Round shares of a total so that they add up, the largest remainders upwards."""
    exact = [chance * total for chance in chances]
    counts = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: counts[i] - exact[i])
    for index in by_remainder[: total - sum(counts)]:
        counts[index] += 1
    return counts


class ErasureEnvironment(Environment):
    """Agents send symbols 0 and 1 about a bit.

    A prover's symbol 0 always arrives, as does a 1 about a bit that is 1. A 1 about a bit that is 0
    is erased in the episodes marked by the dataset (``lie_erased``), in all rounds: then the
    history does not contain the message. Other agents' symbols arrive, and so do linear messages.
    """

    data_keys: ClassVar[tuple[str, ...]] = ("bit", "observation")

    @property
    def num_symbols(self) -> int:
        """2."""
        return NUM_SYMBOLS

    def data_seen_by(self, agent_name: str) -> tuple[str, ...]:
        """Return the bit for provers, and its observation for others."""
        is_prover = agent_name in self.protocol_handler.prover_names
        return ("bit",) if is_prover else ("observation",)

    def _transmit(self, sent: Tensor, td: TensorDictBase) -> Tensor:
        """Erase lies: bool [E, A, C, P, S] to the same."""
        erases = self._erases_lies[td["datapoint_id"]]
        erased = erases.unsqueeze(-1) & self._is_prover  # [E, A]
        arrived = sent.clone()
        arrived[..., 1] &= ~erased[..., None, None]
        return arrived

    @cached_property
    def _erases_lies(self) -> Tensor:
        """Bool [N]: whether the channel erases a 1."""
        return self.dataset["lie_erased"] & (self.dataset["bit"] == 0)

    @cached_property
    def _is_prover(self) -> Tensor:
        """Bool [A]."""
        handler = self.protocol_handler
        provers = set(handler.prover_names)
        return torch.tensor([name in provers for name in handler.agent_names], device=self.device)


class ErasurePerception(Perception):
    """Agents' observation of the bit, one-hot; both symbols are always allowed."""

    def prepare(self, data: TensorDictBase) -> Prepared:
        """Prepare deals: ``bit`` and ``observation`` f32 [b, 3] of 0, 1 and erased."""
        return {
            key: F.one_hot(data.get(key), NUM_SIGHTS).to(torch.float32)
            for key in ("bit", "observation")
        }

    def num_symbols(self, data: Prepared) -> int:
        """Return 2."""
        return NUM_SYMBOLS

    def allowed_symbols(self, is_prover: bool, data: Prepared, message: Tensor) -> Tensor:
        """Allow both."""
        return torch.ones(1, 1, 1, NUM_SYMBOLS, dtype=torch.bool, device=message.device)


class ErasureBody(AgentBody):
    """A multilayer perceptron over the conversation and the agent's observation of the bit.

    It sees ``bit`` or ``observation``; ``d_conversation`` are the features of the history of
    messages, linear ones included.
    """

    def __init__(
        self,
        parameters: BinaryErasureChannelAgentParameters,
        sees: str,
        d_conversation: int,
        d_representation: int,
        init: Initializer,
        read: Collection[str] = (POOLED, SYMBOLS),
    ) -> None:
        super().__init__()
        d_body = parameters.d_body
        self.sees = sees
        sizes = [d_conversation + NUM_SIGHTS, *[d_body] * parameters.num_body_layers]
        self.mlp = Mlp(sizes, parameters.activation_function, init)
        self.norm_and_noise = NormAndNoise(parameters, d_body, init.device)
        self.pooled_out = init.linear(d_body, d_representation) if POOLED in read else None
        self.symbols_out = None
        if SYMBOLS in read:
            self.symbols_out = init.linear(d_body, NUM_SYMBOLS * d_representation)

    def forward(self, inputs: AgentInput) -> Representation:
        """Represent b conversations."""
        features = [inputs.history.flatten(1), inputs.data[self.sees]]
        if inputs.linear_history is not None:
            features.append(inputs.linear_history.flatten(1))
        hidden = self.norm_and_noise(self.mlp(torch.cat(features, dim=1)), inputs)
        symbols = None
        if self.symbols_out is not None:
            symbols = self.symbols_out(hidden).unflatten(1, (NUM_SYMBOLS, -1))
        return Representation(
            pooled=None if self.pooled_out is None else self.pooled_out(hidden), symbols=symbols
        )


class ErasureAgentBuilder(AgentBuilder[BinaryErasureChannelAgentParameters]):
    """Builder of agents over these bodies. Provers see the bit, others the observation."""

    section_class = BinaryErasureChannelAgentParameters

    def build_perception(self, hyper_params: HyperParameters) -> ErasurePerception:
        """Return the preparation of deals."""
        return ErasurePerception()

    def build_body(
        self,
        plan: AgentPlan[BinaryErasureChannelAgentParameters],
        init: Initializer,
        read: Collection[str],
    ) -> ErasureBody:
        """Create a body."""
        return ErasureBody(
            plan.section,
            "bit" if plan.name in plan.handler.prover_names else "observation",
            plan.d_history * NUM_SYMBOLS + (plan.d_linear_history or 0),
            plan.hyper_params.d_representation,
            init,
            read,
        )


@register_scenario("binary_erasure_channel")
class BinaryErasureChannelScenario(MessageScenario):
    """Agents find out a bit that reaches the verifier through a channel that erases."""

    environment_class = ErasureEnvironment
    agent_builder = ErasureAgentBuilder

    def build_datasets(self, hyper_params: HyperParameters) -> dict[str, TensorDictDataset]:
        """Create ``train`` and ``test``."""
        return build_erasure_datasets(hyper_params)

    def data_code(self) -> tuple[Callable[..., object], ...]:
        """Return the code that deals only."""
        return (build_erasure_datasets,)
