"""Choice of the trainer for a service's jobs: the plain loop or TRL."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ratchet.errors import ParameterError
from ratchet.models.llama_shape import plain_shape
from ratchet.models.lora import Lora
from ratchet.service.settings import ServiceSettings
from ratchet.service.training.job_folder import HyperParameterValue
from ratchet.service.training.plan import MICRO_BATCH_PARAMETER

_NEEDED = ("transformers", "trl", "peft")


@dataclass(frozen=True, slots=True)
class JobTrainer:
    """A trainer with the service's defaults.

    Parameters
    ----------
    lora
        Default trainable part of the model; None for a trainer that always trains all weights.
    micro_batch_size
        Default number of examples in memory; None for a complete batch.
    """

    module: str
    lora: Lora | None = None
    micro_batch_size: int | None = None

    @property
    def hyperparameters(self) -> Mapping[str, HyperParameterValue]:
        """Return defaults of hyper-parameters that jobs do not set."""
        values = {} if self.lora is None else self.lora.as_hyperparameters()
        if self.micro_batch_size is not None:
            values[MICRO_BATCH_PARAMETER] = self.micro_batch_size
        return values

    @property
    def version(self) -> str:
        """Tag of trainers that yield different weights; empty for the plain one."""
        parts = list[object]()
        if self.lora is not None:
            parts += ["trl", self.lora.rank, self.lora.alpha, self.lora.dropout]
        if self.micro_batch_size is not None:  # the last bits differ
            parts += ["micro", self.micro_batch_size]
        return ":".join(map(str, parts))


PLAIN_TRAINER = JobTrainer("ratchet.service.training.train")


def choose_trainer(settings: ServiceSettings, base: Path) -> JobTrainer:
    """Choose the trainer for a service's settings and its base model.

    ``auto`` is ``plain`` if plain torch runs the model and all weights are trained, ``trl``
    otherwise.
    """
    if settings.trainer == "plain" or (
        settings.trainer == "auto" and settings.lora.rank == 0 and plain_shape(base) is not None
    ):
        return replace(PLAIN_TRAINER, micro_batch_size=settings.micro_batch_size)
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ParameterError(
            f"Fine-tuning {base.name} through TRL (--trainer {settings.trainer}) needs"
            f" {', '.join(missing)}, not installed here. Install them with `pip install"
            " 'ratchet-experiments[finetune]'`, or start the service with --trainer plain, which"
            " trains all weights in Ratchet's loop."
        )
    module = "ratchet.service.training.trl.train"
    return JobTrainer(module, settings.lora, settings.micro_batch_size)
