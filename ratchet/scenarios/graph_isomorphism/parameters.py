"""Parameters of the graph-isomorphism scenario. Light: no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveInt, model_validator

from ratchet.parameters.agents import AgentParameters, LrFactors
from ratchet.parameters.base import (
    SubParameters,
    register_agent_parameters,
    register_parameters,
)


@register_agent_parameters("graph_isomorphism")
class GraphIsomorphismAgentParameters(AgentParameters):
    """Body and heads of an agent that looks at two graphs."""

    activation_function: Literal["tanh", "relu", "gelu", "silu", "sigmoid"] = "tanh"
    num_gnn_layers: PositiveInt = 5
    d_gnn: PositiveInt = 16
    d_gin_mlp: PositiveInt = 64
    gnn_output_digits: PositiveInt | None = None
    use_dual_gnn: bool = True
    num_heads: PositiveInt = 4
    num_transformer_layers: PositiveInt = 4
    d_transformer: PositiveInt = 16
    d_transformer_mlp: PositiveInt = 64
    transformer_dropout: float = Field(default=0.0, ge=0, lt=1)
    d_node_selector: PositiveInt = 16
    num_node_selector_layers: PositiveInt = 2
    d_decider: PositiveInt = 16
    num_decider_layers: PositiveInt = 2
    include_round_in_decider: bool = True
    d_linear_message_selector: PositiveInt = 16
    num_linear_message_selector_layers: PositiveInt = 2
    d_value: PositiveInt = 16
    num_value_layers: PositiveInt = 2
    include_round_in_value: bool = True
    use_batch_norm: bool = True
    noise_sigma: NonNegativeFloat = 0.0
    use_pair_invariant_pooling: bool = True
    gnn_lr_factor: LrFactors = LrFactors()

    @model_validator(mode="after")
    def _check_heads(self) -> GraphIsomorphismAgentParameters:
        if self.d_transformer % self.num_heads:
            raise ValueError(
                f"d_transformer={self.d_transformer} is not a multiple of num_heads={self.num_heads}"
            )
        return self


@register_parameters("graph_isomorphism", scenarios=("graph_isomorphism",))
class GraphIsomorphismParameters(SubParameters):
    """The generator of graph pairs; ``dataset: generated`` uses all of it.

    A named dataset (``er1000``, ``eru10000``) fixes ``num_pairs`` and how sizes are drawn.
    """

    num_pairs: PositiveInt = 10_000
    graph_sizes: tuple[PositiveInt, ...] = (7, 8, 9, 10, 11)
    edge_probabilities: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8)
    prop_non_isomorphic: float = Field(default=0.5, gt=0, lt=1)
    prop_score_1: float = Field(default=0.1, ge=0, le=1)
    prop_score_2: float = Field(default=0.2, ge=0, le=1)
    max_wl_rounds: PositiveInt = 5
