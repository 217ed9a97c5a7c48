"""A job's hyper-parameters as numbers, for any trainer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ratchet.errors import ParameterError
from ratchet.models.lora import Lora
from ratchet.service.training.job_folder import HyperParameterValue, Method

_EPOCHS: Mapping[Method, int] = {"supervised": 3, "dpo": 2}
_LEARNING_RATES: Mapping[Method, float] = {"supervised": 1e-3, "dpo": 3e-4}
_TINY = 1e5
_LORA_FACTOR = 10.0
_BATCH_SIZE = 16
_BETA = 0.1
MICRO_BATCH_PARAMETER = "micro_batch_size"
SUPERVISED_WEIGHT_PARAMETER = "supervised_weight"


@dataclass(frozen=True, slots=True)
class Plan:
    """Epochs, batch sizes, learning rate and adapter of a job.

    ``learning_rate_multiplier`` multiplies 1e-3 (dpo: 3e-4) for a model of 10⁵ parameters, less
    for larger ones: with the root of their number. With LoRA ten times as much (Schulman et al.
    2025, LoRA without regret).

    Parameters
    ----------
    micro_batch_size
        Examples of a batch in memory at a time: the batch size's largest divisor up to the
        requested number. The batch's step is the same up to rounding.
    beta, supervised_weight
        β and α of :class:`PreferenceLoss`, which only ``dpo`` uses; α depends on the model if None.
    """

    method: Method
    n_epochs: int
    batch_size: int
    micro_batch_size: int
    learning_rate_multiplier: float
    beta: float
    supervised_weight: float | None
    lora: Lora

    @classmethod
    def of(cls, method: Method, hyper_parameters: Mapping[str, HyperParameterValue]) -> Plan:
        """Replace ``"auto"`` and missing values by numbers."""
        weight = hyper_parameters.get(SUPERVISED_WEIGHT_PARAMETER, "auto")
        batch_size = int(_number(hyper_parameters, "batch_size", _BATCH_SIZE))
        at_once = int(_number(hyper_parameters, MICRO_BATCH_PARAMETER, batch_size))
        return cls(
            method=method,
            n_epochs=int(_number(hyper_parameters, "n_epochs", _EPOCHS[method])),
            batch_size=batch_size,
            micro_batch_size=max(
                size for size in range(1, min(at_once, batch_size) + 1) if batch_size % size == 0
            ),
            learning_rate_multiplier=_number(hyper_parameters, "learning_rate_multiplier", 1.0),
            beta=_number(hyper_parameters, "beta", _BETA),
            supervised_weight=None if weight == "auto" else float(weight),
            lora=Lora.of(hyper_parameters),
        )

    @property
    def is_cut(self) -> bool:
        """Whether batches are split into micro-batches."""
        return self.micro_batch_size < self.batch_size

    def learning_rate(self, parameters: int) -> float:
        """Return the peak learning rate for a model with this number of parameters."""
        rate = _LEARNING_RATES[self.method] * float(min(1.0, (_TINY / parameters) ** 0.5))
        factor = _LORA_FACTOR if self.lora.rank else 1.0
        return rate * factor * self.learning_rate_multiplier

    def as_mapping(self) -> dict[str, float | int]:
        """Return the values by name, without those that the method does not use."""
        values: dict[str, float | int] = {
            "n_epochs": self.n_epochs,
            "batch_size": self.batch_size,
            "learning_rate_multiplier": self.learning_rate_multiplier,
        }
        if self.method == "dpo":
            values["beta"] = self.beta
            if self.supervised_weight is not None:
                values[SUPERVISED_WEIGHT_PARAMETER] = self.supervised_weight
        if self.is_cut:
            values[MICRO_BATCH_PARAMETER] = self.micro_batch_size
        return values | self.lora.as_used()


def _number(
    hyper_parameters: Mapping[str, HyperParameterValue], name: str, automatic: float
) -> float:
    value = hyper_parameters.get(name, "auto")
    if value == "auto":
        return automatic
    if isinstance(value, str) or not value > 0:
        raise ParameterError(f'{name}: got {value!r}, expected a positive number or "auto".')
    return float(value)
