"""Folders of the base models: built once per machine, in the user's cache, copied to each home."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TypeAlias

import torch

from ratchet.language_models.local import model_files, tokenizer
from ratchet.language_models.local.model_files import write_configuration
from ratchet.language_models.local.tokenizer import ChatTokenizer
from ratchet.models import llama, llama_shape, optimizers, supervision
from ratchet.models.llama_shape import LlamaShape
from ratchet.scenarios.code_validation.generator import level0
from ratchet.scenarios.code_validation.tiny_model import (
    corpus,
    players,
    pretraining,
    vocabulary,
)
from ratchet.scenarios.code_validation.tiny_model.pretraining import Progress, ignore_progress
from ratchet.scenarios.code_validation.tiny_model.vocabulary import END, PAD
from ratchet.store.fingerprint import code_fingerprint
from ratchet.store.local import sync_tree
from ratchet.store.locks import user_cache
from ratchet.tracking.files import locked

NAME, SMALL_NAME = "ratchet-tiny", "ratchet-tiny-small"
Shape: TypeAlias = "Callable[[int], LlamaShape]"
"""Size of the vocabulary → the figures of a model."""
_DIGEST_LENGTH = 12
_RECIPE = (
    *(vocabulary, players, corpus, pretraining, level0),
    *(optimizers, supervision, llama_shape, llama, tokenizer, model_files),
)


def ensure_base_model(home: Path, progress: Progress = ignore_progress) -> Path:
    """Return the folder of the base model; copy or build it if this home has none.

    It has the Hugging Face layout, and is named by the model and a digest of its code. One of
    several concurrent processes builds it while the others wait; the folder is moved into place
    when complete. A build that was interrupted continues from its last checkpoint. A copy is kept
    in ``$XDG_CACHE_HOME/ratchet/base-models`` (``~/.cache``) for other homes.
    """
    return _ensure(home, NAME, pretraining.base_shape, progress)


def ensure_small_model(home: Path, progress: Progress = ignore_progress) -> Path:
    """Return the folder of a model of half the base model's width, trained in the same way.

    It follows an expert's marks equally well but compares worse: a weak verifier.
    """
    return _ensure(home, SMALL_NAME, small_shape, progress)


def small_shape(vocab_size: int) -> LlamaShape:
    """Return the figures of the small model."""
    return replace(
        pretraining.base_shape(vocab_size),
        hidden_size=32,
        intermediate_size=64,
        num_attention_heads=2,
        num_key_value_heads=2,
    )


def _ensure(home: Path, name: str, shape: Shape, progress: Progress) -> Path:
    models_folder = home / "llm" / "base"
    folder = models_folder / f"{name}-{recipe_digest(shape)}"
    if folder.is_dir():
        return folder
    models_folder.mkdir(parents=True, exist_ok=True)
    with locked(models_folder / ".lock"):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=models_folder, prefix=".making-") as work:
                _make(Path(work) / name, folder, shape, progress)
                shutil.move(Path(work) / name, folder)
    return folder


def _make(folder: Path, target: Path, shape: Shape, progress: Progress) -> None:
    """Copy a base model from the user's cache, or build it and add it to the cache.

    The checkpoints of a build are next to ``target``, where the folder will be moved.
    """
    cached = _cached(target.name)
    try:
        shutil.copytree(cached, folder)
        return
    except (OSError, shutil.Error):  # missing, or not readable
        shutil.rmtree(folder, ignore_errors=True)
    checkpoint = target.with_name(f".{cached.name}.safetensors")
    build_base_model(folder, shape, checkpoint, progress)
    checkpoint.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # no writable cache, or another process was faster
        cached.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cached.parent, prefix=".making-") as work:
            copy = Path(work) / cached.name
            shutil.copytree(folder, copy)
            sync_tree(copy)
            copy.rename(cached)


def _cached(name: str) -> Path:
    """Return the path of a model in the cache, by the inputs that decide its weights."""
    packages = [f"{package}-{version(package)}" for package in ("torch", "numpy", "tokenizers")]
    code = code_fingerprint(build_base_model).digest[:_DIGEST_LENGTH]
    return user_cache() / "base-models" / "-".join([name, code, *packages])


def build_base_model(
    folder: Path,
    shape_of: Shape = pretraining.base_shape,
    checkpoint: Path | None = None,
    progress: Progress = ignore_progress,
) -> None:
    """Build tokenizer and weights of a shape, and write them to a new folder.

    Training writes a checkpoint, and continues from it if it exists.
    """
    folder.mkdir(parents=True)
    words = vocabulary.make_tokenizer()
    vocabulary.save_tokenizer(words, folder)
    shape = shape_of(words.get_vocab_size())
    write_configuration(folder, shape, words, end=END, pad=PAD)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so that the weights don't depend on their number
    try:
        model = pretraining.pretrain(ChatTokenizer(folder), shape, checkpoint, progress)
    finally:
        torch.set_num_threads(threads)
    model.save(folder)


def recipe_digest(shape: Shape = pretraining.base_shape) -> str:
    """Return the first digits of a SHA-256 of the base model's code and shape."""
    sources = [Path(str(module.__file__)).read_bytes() for module in _RECIPE]
    if shape is not pretraining.base_shape:  # which is in the code
        sources.append(repr(shape(0)).encode())
    digest = hashlib.sha256(b"\0".join(sources))
    return digest.hexdigest()[:_DIGEST_LENGTH]
