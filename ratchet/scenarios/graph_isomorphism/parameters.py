"""Parameters of the graph-isomorphism scenario. Light: no torch."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from annotated_types import Ge, Gt, Lt
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from ratchet.parameters.agents import LrFactors
from ratchet.parameters.base import (
    SubParameters,
    TestGroups,
    register_agent_parameters,
    register_parameters,
)
from ratchet.parameters.networks import NetworkAgentParameters
from ratchet.parameters.purposes import AGENT, SCENARIO, Purpose


@register_agent_parameters("graph_isomorphism")
class GraphIsomorphismAgentParameters(NetworkAgentParameters, read_for=AGENT):
    """Body and heads of an agent that sees two graphs.

    ``tie_exchanges``: the rounds of an exchange, a question and the answers to it, reach the GNN as
    one column with one weight, so that the two graphs of an isomorphic pair are equal after a
    correct answer; otherwise each round has its own column, and agents must learn that they are
    equivalent. Scripted and random agents ignore it.

    - ``num_gnn_layers``: number of layers of the graph network.
    - ``d_gnn``: width of the graph network.
    - ``d_gin_mlp``: width of the perceptron in a layer of the graph network.
    - ``gnn_output_digits``: decimal digits that the graph network's output is rounded to; null: not
      rounded.
    - ``use_dual_gnn``: run a second copy of the graph network that does not see messages.
    - ``num_heads``: number of attention heads of the transformer.
    - ``num_transformer_layers``: number of layers of the transformer.
    - ``d_transformer``: width of the transformer.
    - ``d_transformer_mlp``: width of the perceptron in a transformer layer.
    - ``transformer_dropout``: dropout of the transformer.
    - ``d_node_selector``: width of the head that selects a node.
    - ``num_node_selector_layers``: number of layers of the head that selects a node.
    - ``use_batch_norm``: normalise the pooled representation over the batch.
    - ``use_pair_invariant_pooling``: pool a pair as mean and difference, which ignore the graphs'
      order.
    - ``gnn_lr_factor``: factors on the learning rate of the graph network.
    """

    num_gnn_layers: PositiveInt = 5
    d_gnn: PositiveInt = 16
    d_gin_mlp: PositiveInt = 64
    gnn_output_digits: PositiveInt | None = None
    use_dual_gnn: bool = True
    tie_exchanges: bool = False
    num_heads: PositiveInt = 4
    num_transformer_layers: PositiveInt = 4
    d_transformer: PositiveInt = 16
    d_transformer_mlp: PositiveInt = 64
    transformer_dropout: float = Field(default=0.0, ge=0, lt=1)
    d_node_selector: PositiveInt = 16
    num_node_selector_layers: PositiveInt = 2
    use_batch_norm: bool = True
    use_pair_invariant_pooling: bool = True
    gnn_lr_factor: Annotated[LrFactors, Purpose.LEARNING, Purpose.PRETRAINING] = LrFactors()

    def unread(self) -> Collection[str]:
        """Return the switch that changes nothing where it is off."""
        return () if self.tie_exchanges else ("tie_exchanges",)

    @property
    def message_selector_size(self) -> tuple[int, int]:
        """Those of the node selector."""
        return self.d_node_selector, self.num_node_selector_layers

    @model_validator(mode="after")
    def _check_heads(self) -> GraphIsomorphismAgentParameters:
        if self.d_transformer % self.num_heads:
            raise ValueError(
                f"d_transformer={self.d_transformer} is not a multiple of"
                f" num_heads={self.num_heads}"
            )
        return self


class ExtraTestSet(SubParameters):
    """One more test set, of the test side's graphs: e.g. one whose negatives are all easy.

    - ``num_pairs``: number of pairs.
    - ``graph_sizes``: possible numbers of nodes; ``graph_isomorphism.graph_sizes`` when not given.
    - ``prop_non_isomorphic``: share of pairs that are not isomorphic.
    - ``prop_score_1``: share of the non-isomorphic pairs that one round of refinement
      distinguishes.
    - ``prop_score_2``: share of the non-isomorphic pairs that two rounds of refinement distinguish.
    """

    num_pairs: PositiveInt = 1000
    graph_sizes: tuple[Annotated[int, Ge(2)], ...] | None = None
    prop_non_isomorphic: float = Field(default=0.5, gt=0, lt=1)
    prop_score_1: float = Field(default=0.1, ge=0, le=1)
    prop_score_2: float = Field(default=0.2, ge=0, le=1)

    @model_validator(mode="after")
    def _check_mix(self) -> ExtraTestSet:
        _check_proportions(self.prop_score_1, self.prop_score_2)
        return self


@register_parameters("graph_isomorphism", scenarios=("graph_isomorphism",))
class GraphIsomorphismParameters(SubParameters, read_for=SCENARIO):
    """The generator of graph pairs; ``dataset: generated`` uses all of it.

    A named dataset (``er1000``, ``eru10000``) fixes ``num_pairs`` and ``uniform_sizes``.
    Non-isomorphic pairs without a score of 1 or 2 have scores from 3 to ``max_wl_rounds``.
    ``dataset_seed`` is the experiment's seed when not given. ``balanced`` takes the
    graphs of all isomorphic pairs from non-isomorphic ones, as many of each kind; otherwise half of
    them are new, and their sizes and degrees carry information about the label.

    - ``num_pairs``: number of pairs, training and test.
    - ``graph_sizes``: possible numbers of nodes.
    - ``edge_probabilities``: possible probabilities of an edge.
    - ``uniform_sizes``: use all graph sizes equally often.
    - ``prop_non_isomorphic``: share of pairs that are not isomorphic.
    - ``prop_score_1``: share of the non-isomorphic pairs that one round of refinement
      distinguishes.
    - ``prop_score_2``: share of the non-isomorphic pairs that two rounds of refinement distinguish.
    - ``train_prop_score_1``: replaces ``prop_score_1`` in the training half.
    - ``train_prop_score_2``: replaces ``prop_score_2`` in the training half.
    - ``max_wl_rounds``: maximum number of rounds of refinement that are scored.
    - ``extra_test_sets``: further test sets by name.
    """

    num_pairs: PositiveInt = 10_000
    graph_sizes: tuple[Annotated[int, Ge(2)], ...] = (7, 8, 9, 10, 11)
    edge_probabilities: tuple[Annotated[float, Gt(0), Lt(1)], ...] = (0.2, 0.4, 0.6, 0.8)
    uniform_sizes: bool = True
    prop_non_isomorphic: float = Field(default=0.5, gt=0, lt=1)
    prop_score_1: float = Field(default=0.1, ge=0, le=1)
    prop_score_2: float = Field(default=0.2, ge=0, le=1)
    train_prop_score_1: float | None = Field(default=None, ge=0, le=1)
    train_prop_score_2: float | None = Field(default=None, ge=0, le=1)
    max_wl_rounds: PositiveInt = 5
    balanced: bool = False
    dataset_seed: NonNegativeInt | None = None
    extra_test_sets: dict[str, ExtraTestSet] = Field(default_factory=dict)

    def unread(self) -> Collection[str]:
        """Return the switch that changes nothing where it is off."""
        return () if self.balanced else ("balanced",)

    @property
    def train_mix(self) -> tuple[float, float]:
        """Shares of scores 1 and 2 among the non-isomorphic training pairs."""
        score_1, score_2 = self.train_prop_score_1, self.train_prop_score_2
        return (
            self.prop_score_1 if score_1 is None else score_1,
            self.prop_score_2 if score_2 is None else score_2,
        )

    def test_groups(self) -> tuple[TestGroups, ...]:
        """Return the refinement rounds that distinguish pairs, by which results are grouped."""
        rounds = {score: f"round {score}" for score in range(1, self.max_wl_rounds + 1)}
        beyond = {self.max_wl_rounds + 1: f"not within {self.max_wl_rounds}"}
        return (
            TestGroups(
                name="wl",
                column="wl_score",
                title="the Weisfeiler–Leman round that distinguishes a pair",
                axis="Weisfeiler–Leman tells them apart in",
                note="Pairs of graphs by the round of the Weisfeiler–Leman test that tells them"
                " apart: later is harder, and isomorphic pairs are never told apart.",
                labels={0: "isomorphic", **rounds, **beyond},
            ),
        )

    @model_validator(mode="after")
    def _check_mixes(self) -> GraphIsomorphismParameters:
        _check_proportions(self.prop_score_1, self.prop_score_2)
        _check_proportions(*self.train_mix)
        if self.balanced and self.prop_non_isomorphic < 0.5:
            raise ValueError(
                f"balanced=true with prop_non_isomorphic={self.prop_non_isomorphic}: expected 0.5"
                " or more, since graphs of isomorphic pairs come from non-isomorphic ones"
            )
        for name in ("graph_sizes", "edge_probabilities"):
            values = getattr(self, name)
            if not values or len(set(values)) != len(values):
                raise ValueError(
                    f"{name}={values}: expected at least one value, none of them twice"
                )
        for name in self.extra_test_sets:
            if name in ("train", "test", "validation") or not name.isidentifier():
                raise ValueError(
                    f"extra_test_sets.{name}: expected a name of letters, digits and underscores"
                    " other than train, test and validation"
                )
        return self


def _check_proportions(score_1: float, score_2: float) -> None:
    if score_1 + score_2 > 1 + 1e-9:
        raise ValueError(f"expected prop_score_1 + prop_score_2 <= 1, got {score_1} + {score_2}")
