"""vLLM itself, run in a separate interpreter by ``make test-vllm``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from small_model import requests, write_small_model

from ratchet.errors import ParameterError, WorkerDiedError
from ratchet.language_models.engines import vllm_rollouts
from ratchet.language_models.engines.rollouts import log_prob_differences, make_engine
from ratchet.language_models.local.loading import load_language_model
from ratchet.models.lora import Lora

PYTHON = Path(__file__).parents[3] / vllm_rollouts.DEFAULT_PYTHON
OPTIONS = {"enforce_eager": True}


@pytest.fixture(autouse=True, scope="module")
def python():
    os.environ[vllm_rollouts.PYTHON_VARIABLE] = str(PYTHON)
    yield
    del os.environ[vllm_rollouts.PYTHON_VARIABLE]


pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not PYTHON.is_file(), reason="needs `make setup-vllm`"),
]


def read(kind, tmp_path_factory):
    folder = tmp_path_factory.mktemp(kind) / "model"
    write_small_model(folder, d_model=64, init_scale=0.15)
    if kind == "tied":
        return load_language_model(folder, base_dir=Path())
    if kind == "adapted":
        return load_language_model(folder, base_dir=Path(), lora=Lora(4), seed=1)
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(folder)
    network.config.tie_word_embeddings = False
    network.lm_head.weight = torch.nn.Parameter(network.lm_head.weight.detach() * 0.5)
    network.save_pretrained(folder)
    return load_language_model(folder, base_dir=Path())


@pytest.fixture(scope="module", params=["tied", "untied", "adapted"])
def vllm(request, tmp_path_factory):
    """A model and the engine that samples from it."""
    model = read(request.param, tmp_path_factory)
    engine = make_engine("vllm", model, OPTIONS)
    yield model, engine
    engine.close()


def change(model, engine, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    engine.update(model)


def trained_log_probs(engine, asked, written):
    return [p for pair in zip(asked, written, strict=True) for p in engine._score(*pair)]


def test_log_probabilities_are_the_trainers_after_updates(vllm):
    model, engine = vllm
    asked = requests(temperature=0.8)
    seen = []
    for update in range(3):
        if update:
            change(model, engine, update)
        written = engine.generate(asked)
        sampled = [p for completion in written for p in completion.log_probs]
        trained = trained_log_probs(engine, asked, written)
        assert log_prob_differences(sampled, trained)["max_abs"] <= 1e-5
        seen.append([completion.tokens for completion in written])
    assert seen[0] != seen[1] != seen[2]


def test_a_completion_depends_on_its_request_alone(vllm):
    _, engine = vllm
    asked = requests()
    together = engine.generate(asked)
    assert engine.generate(asked) == together
    backwards = engine.generate(asked[::-1])[::-1]
    alone = [engine.generate([request])[0] for request in asked[:3]]
    for others in (backwards, alone):
        for one, other in zip(together, others, strict=False):
            assert one.tokens == other.tokens
            assert one.finish_reason == other.finish_reason
            np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-5)


def test_a_killed_process_is_one_error_and_the_next_call_gives_the_same(vllm):
    _, engine = vllm
    asked = requests(prompt_count=2)
    before = engine.generate(asked)
    os.kill(engine._worker._process.pid, signal.SIGKILL)
    with pytest.raises(WorkerDiedError, match="ended by signal 9"):
        engine.generate(asked)
    assert engine.generate(asked) == before


def test_wrong_options_are_named(tmp_path):
    model = load_language_model(write_small_model(tmp_path / "model"), base_dir=Path())
    engine = make_engine("vllm", model, {**OPTIONS, "max_model_len": 10**6})
    with pytest.raises(ParameterError, match="max_model_len"):
        engine.generate(requests(prompt_count=1))


SCRIPT = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from small_model import requests, write_small_model
from ratchet.language_models.engines.rollouts import make_engine
from ratchet.language_models.local.loading import load_language_model
folder = Path(sys.argv[2])
model = load_language_model(write_small_model(folder / "model", d_model=64), base_dir=folder)
engine = make_engine("vllm", model, {"enforce_eager": True})
engine.generate(requests(prompt_count=1))
print(engine._worker._process.pid, flush=True)
time.sleep(600)
"""


def test_the_process_ends_with_a_killed_trainer(tmp_path):
    local = Path(__file__).parents[1] / "local"
    command = [sys.executable, "-c", SCRIPT, str(local), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as trainer:
        pid = int(trainer.stdout.readline())
        os.kill(pid, 0)
        trainer.kill()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
