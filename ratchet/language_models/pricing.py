"""Costs of calls and training, from a table of prices per million tokens.

The table next to this file is the default; ``settings.prices`` or the environment variable
``RATCHET_PRICES`` sets another, whose models override it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ratchet.errors import BudgetExceededError, ParameterError, PricingError
from ratchet.parameters.reading.yaml_files import read_mapping

PRICES_VARIABLE = "RATCHET_PRICES"

_DEFAULT_FILE = Path(__file__).with_name("prices.yaml")
_MILLION = 1_000_000
_FIELDS = ("input", "output", "training", "fine_tuned_input", "fine_tuned_output")


@dataclass(frozen=True, slots=True)
class ModelPrice:
    """Prices of a model, in the table's currency per million tokens."""

    input: float
    output: float
    training: float = 0.0

    def of_call(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Return the price of calls."""
        return (self.input * prompt_tokens + self.output * completion_tokens) / _MILLION

    def of_training(self, tokens: int) -> float:
        """Return the price of training on a number of tokens (examples times epochs)."""
        return self.training * tokens / _MILLION


FREE = ModelPrice(0.0, 0.0, 0.0)


class PriceTable:
    """Prices by base model, for the model itself and its fine-tuned models."""

    def __init__(
        self, base: Mapping[str, ModelPrice], fine_tuned: Mapping[str, ModelPrice]
    ) -> None:
        self._base = dict(base)
        self._fine_tuned = dict(fine_tuned)

    @classmethod
    def load(cls, path: str | Path | None = None) -> PriceTable:
        """Read the default table, overridden by another: by default ``RATCHET_PRICES``, if set.

        Raises
        ------
        PricingError
            If a file is missing or malformed.
        """
        table = _read(_DEFAULT_FILE)
        other = path or os.environ.get(PRICES_VARIABLE)
        if other:
            more = _read(Path(other).expanduser())
            table._base.update(more._base)
            table._fine_tuned.update(more._fine_tuned)
        return table

    def find(
        self, model: str, *, embedded: bool = False, tuned_from: str | None = None
    ) -> ModelPrice | None:
        """Return a model's price, None if the table has none.

        Parameters
        ----------
        model
            Its name. A dated name has the price of the undated one; a fine-tuned one
            (``ft:BASE:…``) the fine-tuned price of its base.
        embedded
            Whether it runs at the embedded service, which is free.
        tuned_from
            The model from which it was trained, if any: services use different naming schemes. Its
            fine-tuned price applies, if it has one.
        """
        if embedded:
            return FREE
        if tuned_from not in (None, model):
            tuned = self.find(tuned_from if tuned_from.startswith("ft:") else f"ft:{tuned_from}:")
            if tuned is not None:
                return tuned
        prices = self._base
        name = model
        if model.startswith("ft:"):
            prices = self._fine_tuned
            name = model.split(":")[1]
        known = [k for k in prices if name == k or name.startswith(f"{k}-20")]
        return prices[max(known, key=len)] if known else None


@dataclass(frozen=True, slots=True)
class Budget:
    """Spending limit, in the price table's currency; ``None``: unlimited.

    A stop at the budget loses nothing: finished stages and calls are cached, and the same command
    with a higher budget resumes.
    """

    limit: float | None

    def has_room(self, spent: float, planned: float = 0.0) -> bool:
        """Return whether spent and planned amounts are within the limit."""
        return self.limit is None or spent + planned <= self.limit

    def check(self, spent: float, planned: float = 0.0, *, at_least: float | None = None) -> None:
        """Raise if spent, or spent and planned, amounts exceed the limit.

        ``at_least`` is set if ``spent`` is an upper bound.
        """
        if self.has_room(spent, planned):
            return
        next_step = f" and up to {planned:.4f} would come next" if planned else ""
        if at_least is not None and at_least < spent:
            next_step = (
                f" (at least {at_least:.4f}; unknown costs count at their maximum){next_step}"
            )
        raise BudgetExceededError(
            f"budget: {spent:.4f} spent{next_step}, expected at most {self.limit:.4f}. Finished"
            " work is cached: run the same command with a higher settings.budget to resume."
        )


def _read(path: Path) -> PriceTable:
    try:
        models = read_mapping(path).get("models")
    except (OSError, ParameterError) as error:
        raise PricingError(f"prices: {path} cannot be read: {error}") from error
    if not isinstance(models, dict):
        raise PricingError(f"prices: {path} expected a mapping `models` by model name.")
    base: dict[str, ModelPrice] = {}
    fine_tuned: dict[str, ModelPrice] = {}
    for name, row in models.items():
        price = _row(path, str(name), row)
        training = price.get("training", 0.0)
        base[str(name)] = ModelPrice(price["input"], price["output"], training)
        fine_tuned[str(name)] = ModelPrice(
            price.get("fine_tuned_input", price["input"]),
            price.get("fine_tuned_output", price["output"]),
            training,
        )
    return PriceTable(base, fine_tuned)


def _row(path: Path, name: str, row: object) -> dict[str, float]:
    if not isinstance(row, dict) or not {"input", "output"} <= row.keys() <= set(_FIELDS):
        raise PricingError(
            f"prices: {path}: {name}: got {row!r}, expected `input` and `output`, optionally"
            f" {', '.join(_FIELDS[2:])}."
        )
    bad = {k: v for k, v in row.items() if isinstance(v, bool) or not isinstance(v, int | float)}
    if bad or any(value < 0 for value in row.values()):
        raise PricingError(f"prices: {path}: {name}: got {row!r}, expected numbers >= 0.")
    return {key: float(value) for key, value in row.items()}
