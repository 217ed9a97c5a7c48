"""Parameters of agents that are networks with a body and the common heads.

Scenarios subclass this; the heads are in :mod:`ratchet.agents.networks.heads`. Light: no torch.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

from pydantic import NonNegativeFloat, PositiveInt

from ratchet.parameters.agents import AgentParameters
from ratchet.parameters.purposes import AGENT


class NetworkAgentParameters(AgentParameters, read_for=AGENT):
    """Heads that decide, speak in the linear message space and estimate returns; noise and norm.

    ``noise_sigma`` is the standard deviation of the noise that is added to the pooled
    representation while training. ``network`` is a custom body that replaces the scenario's: a
    registered name or ``path/to/file.py:ClassName``.

    - ``activation_function``: activation function of the heads and the body.
    - ``d_decider``: width of the decision head.
    - ``num_decider_layers``: number of layers of the decision head.
    - ``include_round_in_decider``: give the decision head the round.
    - ``d_linear_message_selector``: width of the head of real-valued messages.
    - ``num_linear_message_selector_layers``: number of layers of the head of real-valued messages.
    - ``d_value``: width of the value head.
    - ``num_value_layers``: number of layers of the value head.
    - ``include_round_in_value``: give the value head the round.
    - ``use_batch_norm``: normalise the body's pooled representation over the batch.
    """

    network: str | None = None
    activation_function: Literal["tanh", "relu", "gelu", "silu", "sigmoid"] = "tanh"
    d_decider: PositiveInt = 16
    num_decider_layers: PositiveInt = 2
    include_round_in_decider: bool = True
    d_linear_message_selector: PositiveInt = 16
    num_linear_message_selector_layers: PositiveInt = 2
    d_value: PositiveInt = 16
    num_value_layers: PositiveInt = 2
    include_round_in_value: bool = True
    use_batch_norm: bool = False
    noise_sigma: NonNegativeFloat = 0.0

    @property
    @abstractmethod
    def message_selector_size(self) -> tuple[int, int]:
        """Hidden size and number of layers of the head that selects symbols."""
