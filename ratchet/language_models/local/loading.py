"""From a name or a folder to a model that can be trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from ratchet.errors import DataError, ParameterError
from ratchet.language_models.local.model import LanguageModel
from ratchet.language_models.local.places import find_model
from ratchet.language_models.local.plain_model import PlainLanguageModel
from ratchet.language_models.service.engine.adapters import AdapterBase, weights_print
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
    """Load a model to be trained; nothing is downloaded.

    Parameters
    ----------
    name_or_folder
        A folder in Hugging Face's layout, relative to ``base_dir``, or one with an adapter that
        goes on being trained; else the name of a model that is in Hugging Face's cache.
    lora
        Train an adapter of this size and nothing else.
    dtype
        Of the weights. Small Llamas in float32 run in plain torch, all else through transformers.
    seed
        Of a new adapter's weights.
    base
        What an adapter in the folder stands on, as ``name_or_folder``; where it lay when the
        adapter was written when not given.

    Raises
    ------
    DataError
        If there is no such model, it cannot be loaded, or it stands on one that has changed.
    ParameterError
        If the adapter asked for has dropout, or would stand on another.
    """
    folder, place = find_model(name_or_folder, base_dir), torch.device(device)
    is_adapter = (folder / ADAPTER_CONFIG_FILE).is_file()
    adds = lora is not None and lora.rank > 0
    if adds and is_adapter:
        raise ParameterError(
            f"lora: {folder} is an adapter already, which goes on being trained. Leave lora out."
        )
    if lora is not None and lora.dropout:
        raise ParameterError(
            f"lora_dropout: got {lora.dropout}, expected 0: the trainer's log-probabilities would"
            " not be those of the model that wrote the answers."
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
            f"the adapter in {adapter} stands on the model {base.name} in {base.folder}, which is"
            " not there any more. Put it back."
        )
    if weights_print(Path(base.folder)) != base.weights:
        raise DataError(
            f"the adapter in {adapter} stands on the model {base.name} in {base.folder}, which has"
            " other weights now. Put back those that it was trained on."
        )
