"""The files of a new model's folder besides its weights, in Hugging Face's layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.models.llama_shape import LlamaShape

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def write_tokenizer(
    tokenizer: Tokenizer, folder: Path, *, end: str, pad: str, chat_template: str
) -> None:
    """Write a tokenizer's files in Hugging Face's layout."""
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": end,
        "pad_token": pad,
        "clean_up_tokenization_spaces": False,
    }
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", config)
    (folder / "chat_template.jinja").write_text(chat_template, encoding="utf-8")


def write_configuration(
    folder: Path, shape: LlamaShape, tokenizer: Tokenizer, *, end: str, pad: str
) -> None:
    """Write ``config.json`` and ``generation_config.json`` of a Llama."""
    ends = {"eos_token_id": tokenizer.token_to_id(end), "pad_token_id": tokenizer.token_to_id(pad)}
    _write_json(folder / "config.json", shape.as_config() | ends)
    _write_json(folder / "generation_config.json", {"_from_model_config": True, **ends})


def _write_json(file: Path, content: dict[str, object]) -> None:
    """Write a JSON object."""
    file.write_text(json.dumps(content, indent=1), encoding="utf-8")
