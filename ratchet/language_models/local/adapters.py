"""Adapter folders: PEFT's layout and a record of the base model. No heavy imports.

``adapter_model.safetensors`` and ``adapter_config.json`` are PEFT's. ``base.json`` identifies the
model that the adapter was trained on and its weights, since on other weights it is another model.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.errors import DataError
from ratchet.models.folders import ADAPTER_CONFIG_FILE, ADAPTER_WEIGHTS_FILE, read_json
from ratchet.models.lora import Lora

if TYPE_CHECKING:
    from peft import LoraConfig

_BASE_FILE = "base.json"
_PEFT_WARNINGS = (
    "`is_gradient_checkpointing` is deprecated",
    "Already found a `peft_config`",
    "You are trying to modify a model with PEFT for a second time",
)
_PIECES, _PIECE_BYTES = 64, 2**16


@dataclass(frozen=True, slots=True)
class AdapterBase:
    """Base model of an adapter: a complete model, or another adapter.

    Parameters
    ----------
    name
        The model's id.
    folder
        Its path when the adapter was trained.
    weights
        Its :func:`weights_print`.
    """

    name: str
    folder: str
    weights: str

    @classmethod
    def of(cls, name: str, folder: Path) -> AdapterBase:
        """Describe a model with its current weights."""
        return cls(name, str(folder), weights_print(folder))

    @classmethod
    def read(cls, folder: Path) -> AdapterBase | None:
        """Read the base model of an adapter in a folder; None for a complete model."""
        if not (folder / ADAPTER_CONFIG_FILE).is_file():
            return None
        content = read_json(folder / _BASE_FILE)
        try:
            return cls(**content)
        except TypeError as error:
            raise DataError(f"{folder / _BASE_FILE}: got {sorted(content)}: {error}.") from error

    def write(self, folder: Path) -> None:
        """Write it next to an adapter."""
        (folder / _BASE_FILE).write_text(json.dumps(asdict(self), indent=1), "utf-8")


def weights_print(folder: Path) -> str:
    """Return a digest of a model's weights, from each file's size and evenly spaced pieces.

    Training changes every weight, so pieces distinguish models, and fast even for large ones.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}:".encode())
        starts = {size * piece // _PIECES for piece in range(_PIECES)}
        with path.open("rb") as file:
            for start in sorted(starts):
                file.seek(start)
                digest.update(file.read(_PIECE_BYTES))
    return digest.hexdigest()


@functools.cache  # folders of loaded models may be deleted, and do not change
def leave_weights_unchanged(folder: Path, adapters: tuple[Path, ...]) -> bool:
    """Return whether a model's adapters are added to its layers' outputs, not to its weights.

    Adding small changes to 16-bit weights would round them away. Those of experts are added all the
    same, and adapters may replace embeddings.
    """
    config = read_json(folder / "config.json")
    is_16_bit = config.get("dtype", config.get("torch_dtype")) in ("bfloat16", "float16")
    return is_16_bit and all(map(_changes_outputs, adapters))


def _changes_outputs(adapter: Path) -> bool:
    config = read_json(adapter / ADAPTER_CONFIG_FILE)
    # PEFT changes the base for other initialisations, such as PiSSA
    is_usual = config.get("init_lora_weights", True) in (True, False, None, "gaussian")
    if config.get("target_parameters") or not is_usual:
        return False
    with (adapter / ADAPTER_WEIGHTS_FILE).open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    names = header.keys() - {"__metadata__"}
    return all(".lora_" in name and ".experts." not in name for name in names)


def peft_config(lora: Lora) -> LoraConfig:
    """Convert LoRA settings to PEFT's."""
    from peft import LoraConfig

    return LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.rank,
        lora_alpha=lora.chosen_alpha,
        lora_dropout=lora.dropout,
        target_modules=list(lora.target_modules) or "all-linear",
    )


@contextlib.contextmanager
def without_peft_warnings() -> Iterator[None]:
    """Suppress warnings of a deprecated property of transformers, and of adapters to adapters."""
    with warnings.catch_warnings():
        for message in _PEFT_WARNINGS:
            warnings.filterwarnings("ignore", message=message)
        yield
