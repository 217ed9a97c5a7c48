"""Text experiments with a separate service that fine-tunes adapters; vLLM samples from them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import replace
from pathlib import Path

import openai
import pytest

from ratchet.experiment_files.loading import load_experiment
from ratchet.language_models.endpoints import Endpoint
from ratchet.language_models.fine_tuning import FineTuneClient
from ratchet.language_models.fine_tuning_backends.registry import build_tuning_backend
from ratchet.parameters.chat_agents import FineTuningServiceParameters
from ratchet.scenarios.code_validation.tiny_model import build, pretraining
from tests.flows import test_vllm_flow

sys.path.insert(0, str(Path(__file__).parents[1] / "language_models"))

from tuning_services import VllmService

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
RATCHET = [sys.executable, "-c", "from flows.cli.main import app; app()"]
RANK = 4
POLLING = {"poll_seconds": 0.2, "poll_seconds_max": 1, "num_rollout_workers": 64}


def shape_for_vllm(vocab_size):
    """Return the figures of the base model, with heads of 32, which vLLM supports on a CPU."""
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32}
    return replace(pretraining.base_shape(vocab_size), **heads)


@pytest.fixture
def base(tmp_path, monkeypatch):
    """Build a base model that follows the message format, in a few seconds."""
    monkeypatch.setattr(pretraining, "GAMES", {"good": 1500, "mixed": 500})
    monkeypatch.setattr(pretraining, "STEPS", {"good": 250, "mixed": 50})
    build.build_base_model(tmp_path / "player", shape_for_vllm)
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


@contextlib.contextmanager
def served_by_vllm(base, log):
    """Run vLLM's OpenAI-compatible server, which loads adapters, until the end of the block."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    options = ["--model", base, "--served-model-name", base.name, "--port", str(port)]
    options += ["--enable-lora", "--max-lora-rank", "8", "--dtype", "float32", "--enforce-eager"]
    options += ["--enable-log-requests"]
    command = [test_vllm_flow.PYTHON, "-m", "vllm.entrypoints.openai.api_server", *options]
    variables = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "VLLM_CPU_KVCACHE_SPACE": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env={**os.environ, **variables}, stdout=output, stderr=output
        )
    try:
        url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 300
        while not responds(f"{url}/health"):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def responds(url):
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
        return True
    return False


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


def parameters(url, base, **agents):
    """Return a short version of the demo."""
    changes = {
        "code_validation.num_train": 60,
        "code_validation.num_test": 20,
        "rl.rollouts_per_iteration": 48,
        "rl.num_iterations": 2,
        "agents._default.base_url": url,
        "agents._default.model_name": base.name,
        "agents._default.fine_tuning.n_epochs": 2,
    }
    demo = load_experiment(EXPERIMENTS / "text_demo.yaml").hyper_params
    agents = {f"agents._default.{name}": value for name, value in agents.items()}
    return demo.replace({**changes, **agents}).to_dict()


def test_expert_iteration_with_adapters_at_a_separate_service(lab, base):
    with serving(lab.folder / "service", base) as url:
        result = lab.run(parameters(url, base), lab.settings(**POLLING))
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


@pytest.mark.vllm
@test_vllm_flow.NEEDS_VLLM
def test_vllm_samples_from_each_adapter_and_nothing_twice_after_a_kill(lab, base):
    service = serving(lab.folder / "service", base)
    with service as url, served_by_vllm(base, lab.folder / "vllm.log") as vllm:
        tuning = {"backend": "vllm", "url": url}
        chosen = parameters(f"{vllm}/v1", base, fine_tuning_service=tuning)
        chosen["text_rl"]["test_scheme"] = "none"  # no requests while the run is killed
        lab.kill("stage=await_fine_tune_jobs", chosen, lab.settings(**POLLING))
        result = lab.run(chosen, lab.settings(**POLLING))
    assert result["cached"] > 0
    used = json.loads((Path(result["folder"]) / "usage.json").read_text())["by_model"]
    adapter = r"lora_request: (?:None|LoRARequest\(lora_name='([^']+)')"
    requests = re.findall(adapter, (lab.folder / "vllm.log").read_text())
    assert len(used) == 3  # the base, and an adapter of each agent
    assert Counter(name or base.name for name in requests) == {
        name: model["calls"] for name, model in used.items()
    }
