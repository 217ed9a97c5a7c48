"""Files of a model's folder in Hugging Face's layout, and of an adapter's in PEFT's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS_FILE = "model.safetensors"
ADAPTER_CONFIG_FILE = "adapter_config.json"
ADAPTER_WEIGHTS_FILE = "adapter_model.safetensors"


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise DataError(f"{file}: got {type(content).__name__}, expected a JSON object.")
    return content


def read_weights(file: Path) -> dict[str, Tensor]:
    """Read a safetensors file; raises DataError if it isn't one."""
    from safetensors import SafetensorError  # with torch: seconds that readers of JSON don't need
    from safetensors.torch import load_file

    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{file} cannot be read: {error}") from error
