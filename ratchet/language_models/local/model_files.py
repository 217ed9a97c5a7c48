"""The files of a model's folder apart from its weights, in Hugging Face's layout."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.language_models.local.tokenizer import ChatTokenizer
from ratchet.models.folders import read_json
from ratchet.models.llama_shape import LlamaShape

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_CONFIGURATION_SUFFIXES = {".json", ".jinja", ".model", ".txt"}


class ModelFiles:
    """A model's configuration and tokenizer, read once: its folder may be deleted later."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = ChatTokenizer(folder)
        # The configured padding token, or one that ends messages: padding is masked.
        file = folder / "config.json"
        pad = read_json(file).get("pad_token_id") if file.is_file() else None
        self.pad_token_id = self.tokenizer.end_ids[0] if pad is None or pad < 0 else int(pad)
        self._contents = {file.name: file.read_bytes() for file in configuration_files(folder)}

    def write(self, folder: Path) -> None:
        """Write the files to a folder, created if missing."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self._contents.items():
            (folder / name).write_bytes(content)


def copy_configuration(source: Path, folder: Path) -> None:
    """Copy all files of a model's folder except its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in configuration_files(source):
        shutil.copyfile(file, folder / file.name)


def configuration_files(folder: Path) -> list[Path]:
    """Return all files of a model's folder except its weights."""
    return [
        file
        for file in sorted(folder.iterdir())
        if file.is_file()
        and not file.name.endswith(".index.json")
        and file.suffix in _CONFIGURATION_SUFFIXES
    ]


def write_tokenizer(
    tokenizer: Tokenizer, folder: Path, *, end: str, pad: str, chat_template: str
) -> None:
    """Write a tokenizer's files."""
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
    file.write_text(json.dumps(content, indent=1), encoding="utf-8")
