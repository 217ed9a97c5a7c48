"""Models for TRL's trainers: load for training, save complete or as an adapter."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from ratchet.errors import DataError
from ratchet.language_models.engines.adapters import AdapterBase
from ratchet.language_models.engines.hugging_face_model import with_adapters
from ratchet.language_models.engines.model_folder import copy_configuration
from ratchet.lazy import PRETRAINED_LOCK
from ratchet.service.training.job_folder import TrainingJob

_CARD = "README.md"


@dataclass(frozen=True, slots=True)
class StartModel:
    """Initial model of a job: a complete model and the adapters to merge into it."""

    name: str
    whole: Path
    adapters: tuple[Path, ...] = ()

    @classmethod
    def of(cls, job: TrainingJob) -> StartModel:
        """Return the initial model of a job."""
        whole = Path(job.base_folder)
        return cls(job.base_model or whole.name, whole, tuple(map(Path, job.adapters)))

    def load_for_training(self, *, all_weights: bool) -> Any:  # noqa: ANN401 -- PreTrainedModel
        """Load it: in float32 to train all weights or on a CPU, otherwise in the stored type."""
        keeps_type = torch.cuda.is_available() and not all_weights
        if not self.adapters:
            return _load(self.whole, "auto" if keeps_type else torch.float32)
        model = with_adapters(_load(self.whole, "auto"), self.adapters)
        return model if keeps_type else model.float()

    def write(self, trained: Any, folder: Path) -> None:  # noqa: ANN401 -- PreTrainedModel
        """Write the trained model, for serving and for further training.

        An adapter is written without its base model, in PEFT's layout, with a record of the base.
        Other models are written completely: weights as safetensors in the initial model's stored
        type, configuration and tokenizer.
        """
        if isinstance(trained, PeftModel):
            self._write_adapter(trained, folder)
            return
        with torch.random.fork_rng():  # new layers are initialised randomly first
            model = _load(self.whole, "auto")
            model.load_state_dict(trained.state_dict())
        model.save_pretrained(folder)
        copy_configuration(self.whole, folder)

    def _write_adapter(self, trained: PeftModel, folder: Path) -> None:
        for config in trained.peft_config.values():
            config.base_model_name_or_path = self.name  # not its current path
        trained.save_pretrained(str(folder), save_embedding_layers=False)
        (folder / _CARD).unlink(missing_ok=True)
        below = self.adapters[-1] if self.adapters else self.whole
        AdapterBase.of(self.name, below).write(folder)


def _load(folder: Path, dtype: torch.dtype | str) -> Any:  # noqa: ANN401
    try:
        with PRETRAINED_LOCK:
            return AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, use_safetensors=True, local_files_only=True
            )
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"transformers cannot load the model in {folder}: {error}") from error
