"""An adapter becomes part of the weights that it stands on, in the type in which they are stored.

Small models' weights get it here, as PEFT would add it; all others through PEFT.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ratchet.errors import DataError
from ratchet.language_models.service.engine.adapters import (
    ADAPTER_CONFIG_FILE,
    ADAPTER_WEIGHTS_FILE,
    without_peft_warnings,
)
from ratchet.language_models.service.engine.tokenizer import read_json

_PREFIX = "base_model.model."
_TARGETS = "target_modules"
_A, _B = ".lora_A.weight", ".lora_B.weight"


class LowRankChange:
    """The change W + (α / r) B A of each linear layer, read from an adapter's folder.

    Raises
    ------
    DataError
        If it cannot be read, or changes a model in another way.
    """

    def __init__(self, folder: Path) -> None:
        config = read_json(folder / ADAPTER_CONFIG_FILE)
        unknown = [name for name in _OTHER_WAYS if config.get(name)]
        if config.get("peft_type") != "LORA" or config.get("bias", "none") != "none" or unknown:
            raise DataError(f"{folder}: got {unknown or config.get('peft_type')}, expected LoRA.")
        self.rank = int(config["r"])
        self.scale = float(config["lora_alpha"]) / self.rank
        self.config = config
        tensors = read_weights(folder / ADAPTER_WEIGHTS_FILE)
        self.a, self.b = (
            {
                name.removeprefix(_PREFIX).removesuffix(end): tensor
                for name, tensor in tensors.items()
                if name.endswith(end)
            }
            for end in (_A, _B)
        )
        if self.a.keys() != self.b.keys() or len(tensors) != 2 * len(self.a):
            raise DataError(f"{folder}: got {sorted(tensors)}, expected pairs of {_A} and {_B}.")

    def merge_into(self, weights: dict[str, Tensor]) -> None:
        """Add the change to a model's weights by name."""
        for layer, a in self.a.items():
            name = f"{layer}.weight"
            shape = (self.b[layer].shape[0], a.shape[1])
            if name not in weights or weights[name].shape != shape:
                raise DataError(f"an adapter changes {layer} {shape}, which its base has not.")
            weights[name] += (self.b[layer] @ a) * self.scale


def compose(adapters: Sequence[Path], folder: Path) -> None:
    """Write a chain of adapters as one to the whole model, whose rank is the sum of theirs.

    Its change is that of the chain but for rounding.
    """
    changes = [LowRankChange(adapter) for adapter in adapters]
    tensors: dict[str, Tensor] = {}
    for layer in sorted(set().union(*(change.a for change in changes))):
        (wide, tall) = next((c.a[layer], c.b[layer]) for c in changes if layer in c.a)
        parts = [
            (change.a[layer], change.b[layer] * change.scale)
            if layer in change.a
            else (
                wide.new_zeros(change.rank, wide.shape[1]),
                tall.new_zeros(len(tall), change.rank),
            )
            for change in changes
        ]
        tensors[f"{_PREFIX}{layer}{_A}"] = torch.cat([a for a, _ in parts], dim=0)
        tensors[f"{_PREFIX}{layer}{_B}"] = torch.cat([b for _, b in parts], dim=1).contiguous()
    rank = sum(change.rank for change in changes)
    config = {**changes[-1].config, "r": rank, "lora_alpha": rank}
    if all(isinstance(change.config.get(_TARGETS), list) for change in changes):
        config[_TARGETS] = sorted(set().union(*(change.config[_TARGETS] for change in changes)))
    folder.mkdir(parents=True)
    save_file(tensors, folder / ADAPTER_WEIGHTS_FILE, metadata={"format": "pt"})
    (folder / ADAPTER_CONFIG_FILE).write_text(json.dumps(config, indent=1), "utf-8")


_OTHER_WAYS = ("use_dora", "use_rslora", "modules_to_save", "rank_pattern", "alpha_pattern")


def read_weights(file: Path) -> dict[str, Tensor]:
    """Read a file of tensors; raises DataError if it is none."""
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{file} cannot be read: {error}") from error


def with_adapters(model: Any, adapters: Sequence[Path]) -> Any:  # noqa: ANN401 -- PreTrainedModel
    """Merge adapters into a transformers model, the lowest first.

    Raises
    ------
    DataError
        If PEFT is not installed, or cannot read one.
    """
    if not adapters:
        return model
    try:
        from peft import PeftModel
    except ImportError as error:
        raise DataError(
            "Models that are adapters need PEFT, not installed here. Install it with"
            " `pip install 'ratchet-experiments[finetune]'`."
        ) from error
    with torch.random.fork_rng():  # layers that are made are initialised first
        for adapter in adapters:
            try:
                with without_peft_warnings():
                    adapted = PeftModel.from_pretrained(model, str(adapter))
                model = adapted.merge_and_unload()
            except (OSError, ValueError, RuntimeError) as error:
                raise DataError(f"PEFT cannot load the adapter in {adapter}: {error}") from error
    return model.requires_grad_(True)  # PEFT has frozen it
