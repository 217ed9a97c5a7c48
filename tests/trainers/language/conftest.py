"""A small model, and answers that it might have written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from ratchet.language_models.engines.in_process import InProcessEngine
from ratchet.language_models.engines.rollouts import SampleRequest
from ratchet.language_models.local.loading import load_language_model
from ratchet.language_models.local.model import LanguageModel
from ratchet.language_models.local.small_models import SmallModelShape, make_small_model
from ratchet.rollouts.trajectory import Trajectory

SHAPE = SmallModelShape(d_model=16, layers=1, heads=2, d_mlp=32, context_length=32)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "small"
    make_small_model(folder, alphabet="abcd=", shape=SHAPE, seed=3)
    return folder


@pytest.fixture
def new_model(model_folder):
    def load() -> LanguageModel:
        torch.set_num_threads(1)
        return load_language_model(model_folder, base_dir=Path())

    return load


@pytest.fixture
def connected(new_model):
    """Build a trainer with a config and its own model."""

    def connect(trainer_class, **config):
        trainer = trainer_class(OmegaConf.create({"max_tokens": 6, **config}))
        model = new_model()
        trainer.connect(model, InProcessEngine(model))
        return trainer

    return connect


@pytest.fixture
def play(new_model):
    """Generate groups of completions; the reward is the share of "a" in the text."""

    def play(groups: int = 4, size: int = 4, seed: int = 0, model=None) -> list[Trajectory]:
        model = model or new_model()
        rng = np.random.default_rng(seed)
        prompts = ["".join(rng.choice(list("abcd"), 3)) + "=" for _ in range(groups)]
        requests = [
            SampleRequest(tuple(model.tokenizer.encode(prompt)), 6, int(rng.integers(2**60)))
            for prompt in prompts
            for _ in range(size)
        ]
        answers = InProcessEngine(model).generate(requests)
        wanted = model.tokenizer.encode("a")[0]
        return [
            Trajectory(
                tokens=[*request.prompt, *answer.tokens],
                loss_mask=[0] * len(request.prompt) + [1] * len(answer.tokens),
                logprobs=[0.0] * len(request.prompt) + list(answer.log_probs),
                reward=sum(token == wanted for token in answer.tokens) / len(answer.tokens),
                group_id=f"task {place // size}",
                run_id=f"task {place // size}",
                attempt_id=f"attempt {place}",
                task_id=f"task {place // size}",
                agent="agent",
            )
            for place, (request, answer) in enumerate(zip(requests, answers, strict=True))
        ]

    return play


def weights_of(trainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


def differ(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The largest difference of two models' weights."""
    return max(float((one[name] - other[name]).abs().max()) for name in one)
