"""The base model as a folder: made once for each home, then found."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path

import torch

from ratchet.language_models.local import model_folder_writing
from ratchet.language_models.local.model_folder_writing import write_configuration
from ratchet.language_models.service.engine import llama_shape, plain_llama, tokenizer
from ratchet.language_models.service.engine.model_folder import save_llama
from ratchet.language_models.service.engine.tokenizer import ChatTokenizer
from ratchet.language_models.service.training import optimization
from ratchet.scenarios.code_validation.generator import level0
from ratchet.scenarios.code_validation.tiny_model import (
    corpus,
    players,
    pretraining,
    vocabulary,
)
from ratchet.scenarios.code_validation.tiny_model.vocabulary import END, PAD
from ratchet.tracking.files import locked

NAME = "ratchet-tiny"
_DIGEST_LENGTH = 12
_RECIPE = (
    *(vocabulary, players, corpus, pretraining, level0),
    *(optimization, llama_shape, plain_llama, tokenizer, model_folder_writing),
)


def ensure_base_model(home: Path) -> Path:
    """Return the folder of the base model; make it if this home has none.

    It is in Hugging Face's layout, named by the model and a digest of the code that makes it. Of
    several processes that ask at once one makes it and the others wait; a killed one leaves
    nothing behind that would be taken for a model.
    """
    place = home / "llm" / "base"
    folder = place / f"{NAME}-{recipe_digest()}"
    if folder.is_dir():
        return folder
    place.mkdir(parents=True, exist_ok=True)
    with locked(place / ".lock"):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=place, prefix=".making-") as work:
                build_base_model(Path(work) / NAME)
                shutil.move(Path(work) / NAME, folder)
    return folder


def build_base_model(folder: Path) -> None:
    """Make tokenizer and weights, and write them to a new folder."""
    folder.mkdir(parents=True)
    words = vocabulary.make_tokenizer()
    vocabulary.save_tokenizer(words, folder)
    shape = pretraining.base_shape(words.get_vocab_size())
    write_configuration(folder, shape, words, end=END, pad=PAD)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so that the weights don't depend on how many there are
    try:
        model = pretraining.pretrain(ChatTokenizer(folder), shape)
    finally:
        torch.set_num_threads(threads)
    save_llama(model, folder)


def recipe_digest() -> str:
    """Return the first digits of a SHA-256 of the code that makes the base model."""
    sources = [Path(str(module.__file__)) for module in _RECIPE]
    digest = hashlib.sha256(b"\0".join(source.read_bytes() for source in sources))
    return digest.hexdigest()[:_DIGEST_LENGTH]
