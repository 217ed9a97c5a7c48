"""What an analysis came to, or would come to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class AnalyserSummary:
    """One analyser's part.

    Attributes
    ----------
    num_messages
        Messages that it judges.
    num_kept
        Those of them with a verdict from before, which is kept.
    num_calls
        Calls that were made; of a dry run those that would be, with readable answers.
    prompt_tokens, completion_tokens
        What the calls used; of a dry run estimates, with all completions at their limit.
    cost
        In the price table's currency; None where the model has no price.
    verdicts
        How many messages have each label; ``"unreadable"`` where no label could be read.
    num_too_long
        Messages that were left out, because the question is longer than the model can read.
    """

    name: str
    num_messages: int
    num_kept: int
    num_calls: int
    prompt_tokens: int
    completion_tokens: int
    cost: float | None
    verdicts: Mapping[str, int]
    num_too_long: int = 0


@dataclass(frozen=True)
class AnalysisSummary:
    """All analysers' parts; ``is_dry_run`` tells estimates from what was done."""

    model: str
    is_dry_run: bool
    analysers: tuple[AnalyserSummary, ...]

    @property
    def num_calls(self) -> int:
        """Calls of all analysers."""
        return sum(analyser.num_calls for analyser in self.analysers)

    @property
    def num_too_long(self) -> int:
        """Messages that were left out by an analyser, over all analysers."""
        return sum(analyser.num_too_long for analyser in self.analysers)

    @property
    def cost(self) -> float | None:
        """The cost of all analysers; None where the model has no price."""
        costs = [analyser.cost for analyser in self.analysers]
        return None if None in costs else sum(cost for cost in costs if cost is not None)
