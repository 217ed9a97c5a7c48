"""Size of an adapter: a low-rank change of each linear layer (LoRA, Hu et al. 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ratchet.errors import ParameterError

LORA_PARAMETERS = ("lora_rank", "lora_alpha", "lora_dropout")


@dataclass(frozen=True, slots=True)
class Lora:
    """Settings of an adapter: each linear layer W except the head becomes W + (α / r) B A.

    Parameters
    ----------
    rank
        r, the rank of the change; 0 trains all weights instead.
    alpha
        α; None for 2 r.
    dropout
        Probability that an input of the adapter is dropped in training.
    target_modules
        Names of the changed layers; empty for all linear layers except the head.
    """

    rank: int = 0
    alpha: int | None = None
    dropout: float = 0.0
    target_modules: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.rank < 0:
            raise ParameterError(f"lora_rank: got {self.rank}, expected 0 (no LoRA) or more.")
        if self.alpha is not None and self.alpha < 1:
            raise ParameterError(f"lora_alpha: got {self.alpha}, expected 1 or more.")
        if not 0 <= self.dropout < 1:
            raise ParameterError(f"lora_dropout: got {self.dropout}, expected 0 or more, below 1.")

    @classmethod
    def of(cls, hyper_parameters: Mapping[str, int | float | str]) -> Lora:
        """Read a job's hyper-parameters; missing ones and ``"auto"`` have their default."""
        values: dict[str, int | float] = {}
        for name in LORA_PARAMETERS:
            value = hyper_parameters.get(name, "auto")
            if value == "auto":
                continue
            if isinstance(value, str):
                raise ParameterError(f'{name}: got {value!r}, expected a number or "auto".')
            values[name] = value
        return cls(
            rank=int(values.get("lora_rank", 0)),
            alpha=int(values["lora_alpha"]) if "lora_alpha" in values else None,
            dropout=values.get("lora_dropout", 0.0),
        )

    @property
    def chosen_alpha(self) -> int:
        """α as a number."""
        return 2 * self.rank if self.alpha is None else self.alpha

    def as_hyperparameters(self) -> dict[str, int | float | str]:
        """Return the settings as a job's hyper-parameters, which :meth:`of` reads."""
        alpha = "auto" if self.alpha is None else self.alpha
        return {"lora_rank": self.rank, "lora_alpha": alpha, "lora_dropout": self.dropout}

    def as_used(self) -> dict[str, float | int]:
        """Return the settings as used; empty if all weights were trained."""
        if self.rank == 0:
            return {}
        return {
            "lora_rank": self.rank,
            "lora_alpha": self.chosen_alpha,
            "lora_dropout": self.dropout,
        }
