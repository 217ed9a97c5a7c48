"""Loads trainable models by name or folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from ratchet.errors import DataError, ParameterError
from ratchet.language_models.engines.adapters import AdapterBase, weights_print
from ratchet.language_models.local.model import LanguageModel
from ratchet.language_models.local.model_locations import find_model
from ratchet.language_models.local.plain_model import PlainLanguageModel
from ratchet.models.folders import ADAPTER_CONFIG_FILE
from ratchet.models.llama_shape import plain_shape
from ratchet.models.lora import Lora

WeightType = Literal["float32", "bfloat16", "float16"]


def load_language_model(
    name_or_folder: str | Path,
    *,
    base_dir: Path,
    lora: Lora | None = None,
    device: str = "cpu",
    dtype: WeightType = "float32",
    seed: int = 0,
    base: str | None = None,
) -> LanguageModel:
    """Load a model for training, without downloads.

    Parameters
    ----------
    name_or_folder
        A folder in Hugging Face's layout, relative to ``base_dir``, or a folder of an adapter to
        train further; otherwise the name of a model in Hugging Face's cache.
    lora
        Train only an adapter of this size.
    dtype
        Of the weights. Small float32 Llamas run in plain torch, all others in transformers.
    seed
        Seed of a new adapter's weights.
    base
        The base model of an adapter in the folder, as ``name_or_folder``; by default its location
        when the adapter was written.

    Raises
    ------
    DataError
        If the model does not exist, cannot be loaded, or its base model has changed.
    ParameterError
        If the requested adapter has dropout, or the base model does not match.
    """
    folder, place = find_model(name_or_folder, base_dir), torch.device(device)
    is_adapter = (folder / ADAPTER_CONFIG_FILE).is_file()
    adds = lora is not None and lora.rank > 0
    if adds and is_adapter:
        raise ParameterError(
            f"lora: {folder} is already an adapter, which is trained further. Omit lora."
        )
    if lora is not None and lora.dropout:
        raise ParameterError(
            f"lora_dropout: got {lora.dropout}, expected 0: the trainer's log-probabilities would"
            " differ from those of the sampling model."
        )
    if is_adapter or adds:
        from ratchet.language_models.local.hugging_face import HuggingFaceLanguageModel

        if lora is not None and adds:
            return HuggingFaceLanguageModel.with_new_adapter(folder, place, dtype, lora, seed=seed)
        stands_on = AdapterBase.read(folder)
        assert stands_on is not None
        if base is not None:
            stands_on = replace(stands_on, folder=str(find_model(base, base_dir)))
        _check_base(stands_on, folder)
        return HuggingFaceLanguageModel.with_adapter(folder, stands_on, place, dtype)
    shape = plain_shape(folder) if dtype == "float32" else None
    if shape is not None:
        return PlainLanguageModel.read(folder, shape, place)
    from ratchet.language_models.local.hugging_face import HuggingFaceLanguageModel

    return HuggingFaceLanguageModel.read(folder, place, dtype)


def _check_base(base: AdapterBase, adapter: Path) -> None:
    if not Path(base.folder).is_dir():
        raise DataError(
            f"the adapter in {adapter} needs the model {base.name} in {base.folder}, which no"
            " longer exists. Restore it."
        )
    if weights_print(Path(base.folder)) != base.weights:
        raise DataError(
            f"the adapter in {adapter} needs the model {base.name} in {base.folder}, which has"
            " different weights now. Restore those that it was trained on."
        )
