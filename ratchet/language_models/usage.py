"""Usage and cost by agent, model and stage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ratchet.language_models.ledger import UNBILLED, Bill, Ledger
from ratchet.language_models.pricing import ModelPrice
from ratchet.language_models.types import ChatRequest, Completion


@dataclass(frozen=True, slots=True)
class UsageRow:
    """Usage of one model by one agent in one stage.

    ``calls`` are completed ones; ``cost`` is None if the model has no price. The tokens of a
    fine-tune job are in a row whose agent is its shared model group.
    """

    stage: str
    agent: str
    model: str
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    training_tokens: int = 0
    cost: float | None = 0.0

    def plus(self, other: UsageRow) -> UsageRow:
        """Add usage of the same agent, model and stage."""
        known = self.cost is not None and other.cost is not None
        return UsageRow(
            self.stage,
            self.agent,
            self.model,
            self.calls + other.calls,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.training_tokens + other.training_tokens,
            (self.cost or 0.0) + (other.cost or 0.0) if known else None,
        )


class UsageMeter:
    """Counts the usage of completed calls, and has attempts billed in a ledger.

    A cached completion is counted, but not billed again.
    """

    def __init__(self, stage: str = "", ledger: Ledger | None = None) -> None:
        self.stage = stage
        self.ledger = ledger
        self._rows: dict[tuple[str, str, str], UsageRow] = {}

    def bill(self, price: ModelPrice | None, request: ChatRequest, call_id: str) -> Bill:
        """Return the bill for each attempt at a call."""
        if self.ledger is None or price is None:
            return UNBILLED
        max_cost = price.of_call(*request.most_tokens)
        return Bill(self.ledger, price, max_cost, f"{self.stage}/{call_id}")

    def record_call(
        self, agent: str, model: str, completion: Completion, price: ModelPrice | None
    ) -> None:
        """Count a completed call."""
        tokens = completion.prompt_tokens, completion.completion_tokens
        cost = price.of_call(*tokens) if price else None
        self.add(UsageRow(self.stage, agent, model, 1, *tokens, 0, cost))

    def record_training(
        self, group: str, model: str, tokens: int, price: ModelPrice | None
    ) -> None:
        """Count a job's trained tokens (examples times epochs)."""
        cost = price.of_training(tokens) if price else None
        self.add(UsageRow(self.stage, group, model, training_tokens=tokens, cost=cost))

    def add(self, row: UsageRow) -> None:
        """Add a row to the one of the same names."""
        key = (row.stage, row.agent, row.model)
        known = self._rows.get(key)
        self._rows[key] = known.plus(row) if known else row

    def rows(self) -> list[UsageRow]:
        """Return all rows, sorted by stage, agent and model."""
        return [row for _, row in sorted(self._rows.items())]

    @property
    def total(self) -> UsageRow:
        """The sum of all rows; its cost excludes models without a price."""
        total = UsageRow("total", "", "")
        for row in self._rows.values():
            total = total.plus(replace(row, cost=row.cost or 0.0))
        return total

    @property
    def cost(self) -> float:
        """Total cost of priced models, in the price table's currency."""
        return sum(row.cost or 0.0 for row in self._rows.values())

    @property
    def unpriced_models(self) -> list[str]:
        """The models without a price."""
        return sorted({row.model for row in self._rows.values() if row.cost is None})

    def to_table(self) -> list[dict[str, Any]]:
        """Return the rows as plain data."""
        return [asdict(row) for row in self.rows()]

    @classmethod
    def from_table(cls, table: Iterable[Mapping[str, Any]]) -> UsageMeter:
        """Build a meter from plain data; the inverse of :meth:`to_table`."""
        meter = cls()
        for row in table:
            meter.add(UsageRow(**row))
        return meter
