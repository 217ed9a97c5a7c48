"""Which trainer a service's jobs go through: the plain loop or TRL's."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ratchet.errors import ParameterError
from ratchet.language_models.service.settings import ServiceSettings
from ratchet.language_models.service.training.job_folder import HyperParameterValue
from ratchet.language_models.service.training.plan import MICRO_BATCH_PARAMETER
from ratchet.models.llama_shape import plain_shape
from ratchet.models.lora import Lora

_NEEDED = ("transformers", "trl", "peft")


@dataclass(frozen=True, slots=True)
class JobTrainer:
    """A trainer, and what it is told beside what a job says.

    Parameters
    ----------
    lora
        What of the model is trained where a job says nothing; None for a trainer that trains all
        weights and nothing else.
    micro_batch_size
        How many examples are in memory at once where a job says nothing; None for a whole batch.
    """

    module: str
    lora: Lora | None = None
    micro_batch_size: int | None = None

    @property
    def hyperparameters(self) -> Mapping[str, HyperParameterValue]:
        """What jobs get that they do not name themselves."""
        values = {} if self.lora is None else self.lora.as_hyperparameters()
        if self.micro_batch_size is not None:
            values[MICRO_BATCH_PARAMETER] = self.micro_batch_size
        return values

    @property
    def version(self) -> str:
        """Tell trainers apart that make other weights of the same job; empty for the plain one."""
        parts = list[object]()
        if self.lora is not None:
            parts += ["trl", self.lora.rank, self.lora.alpha, self.lora.dropout]
        if self.micro_batch_size is not None:  # the last bits differ
            parts += ["micro", self.micro_batch_size]
        return ":".join(map(str, parts))


PLAIN_TRAINER = JobTrainer("ratchet.language_models.service.training.train")


def choose_trainer(settings: ServiceSettings, base: Path) -> JobTrainer:
    """Choose the trainer that a service's settings and its base model ask for.

    ``auto`` is ``plain`` where plain torch runs the model and all weights are trained, ``trl``
    otherwise.

    Raises
    ------
    ParameterError
        If what the trainer stands on is not installed.
    """
    if settings.trainer == "plain" or (settings.trainer == "auto" and _is_plain(settings, base)):
        return replace(PLAIN_TRAINER, micro_batch_size=settings.micro_batch_size)
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ParameterError(
            f"Fine-tuning {base.name} through TRL (--trainer {settings.trainer}) needs"
            f" {', '.join(missing)}, not installed here. Install them with `pip install"
            " 'ratchet-experiments[finetune]'`, or start the service with --trainer plain, which"
            " trains all weights in a loop of its own."
        )
    module = "ratchet.language_models.service.training.trl.train"
    return JobTrainer(module, settings.lora, settings.micro_batch_size)


def _is_plain(settings: ServiceSettings, base: Path) -> bool:
    return settings.lora.rank == 0 and plain_shape(base) is not None
