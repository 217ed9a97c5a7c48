"""A text experiment with a separate service that fine-tunes adapters with TRL."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import openai
import pytest

from ratchet.experiment_files.loading import load_experiment
from ratchet.language_models.endpoints import Endpoint
from ratchet.language_models.fine_tuning import FineTuneClient
from ratchet.language_models.fine_tuning_backends.registry import build_tuning_backend
from ratchet.parameters.chat_agents import FineTuningServiceParameters
from ratchet.scenarios.code_validation.tiny_model import build, pretraining

sys.path.insert(0, str(Path(__file__).parents[1] / "language_models"))

from tuning_services import VllmService

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
RATCHET = [sys.executable, "-c", "from flows.cli.main import app; app()"]
RANK = 4


@pytest.fixture
def base(tmp_path, monkeypatch):
    """Build a base model that follows the message format, in a few seconds."""
    monkeypatch.setattr(pretraining, "GAMES", {"good": 1500, "mixed": 500})
    monkeypatch.setattr(pretraining, "STEPS", {"good": 250, "mixed": 50})
    build.build_base_model(tmp_path / "player")
    return tmp_path / "player"


@contextlib.contextmanager
def serving(home, base):
    """Run ``ratchet llm serve`` until the end of the block."""
    options = ["--home", str(home), "--model", str(base), "--port", "0"]
    options += ["--lora-rank", str(RANK)]
    process = subprocess.Popen([*RATCHET, "llm", "serve", *options], env={**os.environ})
    try:
        file, deadline = home / "llm" / "service.json", time.monotonic() + 300
        while not file.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield json.loads(file.read_text())["url"]
    finally:
        process.terminate()
        process.wait(240)


def loaded_by_vllm(url, model):
    """Activate a trained model in a fake vLLM; return the folder that vLLM must load."""
    service = VllmService()
    try:
        parameters = FineTuningServiceParameters(backend="vllm", url=url)
        backend = build_tuning_backend(Endpoint(service.url), parameters)
        client = FineTuneClient(Endpoint(service.url), backend=backend)
        assert asyncio.run(client.activate(model)) == model
        return Path(service.deployments[0]["root"])
    finally:
        service.close()


def test_expert_iteration_with_adapters_at_a_separate_service(lab, base):
    experiment = load_experiment(EXPERIMENTS / "text_demo.yaml")
    with serving(lab.folder / "service", base) as url:
        changes = {
            "code_validation.num_train": 60,
            "code_validation.num_test": 20,
            "rl.rollouts_per_iteration": 48,
            "rl.num_iterations": 2,
            "agents._default.base_url": url,
            "agents._default.model_name": base.name,
            "agents._default.fine_tuning.n_epochs": 2,
        }
        polling = {"poll_seconds": 0.2, "poll_seconds_max": 1, "num_rollout_workers": 64}
        chosen = experiment.hyper_params.replace(changes).to_dict()
        result = lab.run(chosen, lab.settings(**polling))
        with openai.OpenAI(base_url=url, api_key="none") as client:
            jobs = list(client.fine_tuning.jobs.list())
        adapter = loaded_by_vllm(url, jobs[0].fine_tuned_model)
    assert (adapter / "adapter_config.json").is_file()
    assert len(jobs) == 2  # one for each agent; the last iteration creates none
    for job in jobs:
        assert job.status == "succeeded", job.error
        assert job.method.supervised.hyperparameters.to_dict()["lora_rank"] == RANK
        folder = lab.folder / "service" / "llm" / "models" / job.id
        assert (folder / "adapter_model.safetensors").is_file()
        assert not (folder / "model.safetensors").exists()
    used = json.loads((Path(result["folder"]) / "usage.json").read_text())
    asked = json.dumps(used)
    assert all(job.fine_tuned_model in asked for job in jobs)  # the second iteration uses them
    assert 0 <= result["metrics"]["main"]["test"]["test_accuracy"] <= 1
