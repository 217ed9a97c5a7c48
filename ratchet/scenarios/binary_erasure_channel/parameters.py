"""Parameters of the binary-erasure-channel scenario. Light: no torch."""

from __future__ import annotations

from pydantic import Field, NonNegativeInt, PositiveInt

from ratchet.parameters.base import (
    SubParameters,
    register_agent_parameters,
    register_parameters,
)
from ratchet.parameters.networks import NetworkAgentParameters
from ratchet.parameters.purposes import AGENT, SCENARIO


@register_agent_parameters("binary_erasure_channel")
class BinaryErasureChannelAgentParameters(NetworkAgentParameters, read_for=AGENT):
    """Body and heads of an agent in the binary-erasure-channel game.

    - ``d_body``: width of the body.
    - ``num_body_layers``: number of layers of the body.
    - ``d_message_selector``: width of the head that selects symbols.
    - ``num_message_selector_layers``: number of layers of the head that selects symbols.
    """

    d_body: PositiveInt = 16
    num_body_layers: PositiveInt = 2
    d_message_selector: PositiveInt = 16
    num_message_selector_layers: PositiveInt = 2

    @property
    def message_selector_size(self) -> tuple[int, int]:
        """Those of the message selector."""
        return self.d_message_selector, self.num_message_selector_layers


@register_parameters("binary_erasure_channel", scenarios=("binary_erasure_channel",))
class BinaryErasureChannelParameters(SubParameters, read_for=SCENARIO):
    """Probabilities of the game, and the size of its dataset, for ``dataset: generated``.

    ``dataset_seed`` is the experiment's seed when not given.

    - ``num_datapoints``: number of datapoints, training and test.
    - ``observation_erasure_probability``: probability that a verifier's view of the bit is erased.
    - ``lie_erasure_probability``: probability that the channel erases a prover's symbol 1 about a
      bit of 0.
    """

    num_datapoints: PositiveInt = 2000
    observation_erasure_probability: float = Field(default=0.8, ge=0, le=1)
    lie_erasure_probability: float = Field(default=0.75, ge=0, le=1)
    dataset_seed: NonNegativeInt | None = None
