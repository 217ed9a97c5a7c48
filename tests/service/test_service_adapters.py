"""A service process that trains adapters, called with OpenAI's SDK."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import openai
import psutil
import pytest
import torch
from micro_model import trainable_model, write_micro_model
from safetensors.torch import load_file

from ratchet.language_models.local.adapters import AdapterBase
from ratchet.models.low_rank import LowRankChange
from ratchet.service.launch import service_command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ACCEPT, REJECT = "Decision: accept", "Decision: reject"
PROMPT = [{"role": "user", "content": "same"}]
RANK = 4


def answer(text):
    return [{"role": "assistant", "content": text}]


@contextlib.contextmanager
def serving(home, **lora):
    """Run a service until the end of the block or until it is killed."""
    command = service_command(home=str(home), model=str(home / "micro"), lora=lora)
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        yield process, _await_address(home, process)
    finally:
        process.terminate()
        process.wait(240)


def _await_address(home, process):
    file = home / "llm" / "service.json"
    deadline = time.monotonic() + 300
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError, urllib.error.URLError):
            address = json.loads(file.read_bytes())
            health = address["url"].removesuffix("/v1") + "/health"
            if address["pid"] == process.pid and urllib.request.urlopen(health).status == 200:
                return address["url"]
        time.sleep(0.05)
    raise AssertionError(f"the service did not start: {process.poll()}")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    write_micro_model(home / "micro", hidden_size=32, head_dim=8)
    return home


def connect(url):
    return openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=30)


def upload(client, example, count=40):
    data = (json.dumps(example) + "\n").encode() * count
    return client.files.create(file=("t.jsonl", data), purpose="fine-tune").id


def create(client, model, file_id, method, **hyperparameters):
    return client.fine_tuning.jobs.create(
        model=model,
        training_file=file_id,
        method={"type": method, method: {"hyperparameters": hyperparameters}},
        seed=1,
    )


def ended(client, job, seconds=180):
    deadline = time.monotonic() + seconds
    while job.status in ("queued", "running"):
        assert time.monotonic() < deadline
        time.sleep(0.1)
        job = client.fine_tuning.jobs.retrieve(job.id)
    return job


def losses(client, job):
    events = reversed(list(client.fine_tuning.jobs.list_events(job.id)))
    return [event.data["train_loss"] for event in events if event.type == "metrics"]


def reply(client, model):
    said = client.chat.completions.create(model=model, messages=PROMPT, temperature=0, max_tokens=5)
    return said.choices[0].message.content


def weights(home, jobs):
    """Return the weights after a chain of jobs."""
    last = folder_of(home, jobs[-1])
    if AdapterBase.read(last) is None:
        return load_file(last / "model.safetensors")
    adapters = [folder_of(home, job) for job in jobs]
    return trainable_model(home / "micro", adapters).llama.weights()


def folder_of(home, job):
    (folder,) = (home / "llm" / "models").glob(job.id)
    return folder


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.exhaustive), RANK])
def test_jobs_change_a_models_answers_and_build_on_each_other(home, rank):
    with serving(home, rank=RANK) as (_, url), connect(url) as client:
        said = {} if rank else {"lora_rank": 0}
        strong = {"n_epochs": 2, "batch_size": 2, "learning_rate_multiplier": 2.0, **said}
        chats = upload(client, {"messages": PROMPT + answer(ACCEPT)})
        first = ended(client, create(client, "micro", chats, "supervised", **strong))
        assert first.status == "succeeded", first.error
        assert losses(client, first)[-1] < 0.5 < losses(client, first)[0]
        assert reply(client, "micro") != reply(client, first.fine_tuned_model) == ACCEPT
        used = first.method.supervised.hyperparameters.to_dict()
        assert used["lora_rank"] == (RANK if rank else 0)

        pair = {
            "input": {"messages": PROMPT},
            "preferred_output": answer(REJECT),
            "non_preferred_output": answer(ACCEPT),
        }
        pairs = upload(client, pair)
        second = ended(client, create(client, first.fine_tuned_model, pairs, "dpo", **strong))
        assert second.status == "succeeded", second.error
        assert losses(client, second)[-1] < losses(client, second)[0] - 0.1
        assert reply(client, second.fine_tuned_model) != ACCEPT
        checkpoints = list(client.fine_tuning.jobs.checkpoints.list(second.id))
        assert len(checkpoints) == strong["n_epochs"]
        assert checkpoints[0].fine_tuned_model_checkpoint == second.fine_tuned_model
        assert reply(client, checkpoints[-1].fine_tuned_model_checkpoint)
        if rank:
            with pytest.raises(openai.ConflictError, match="is an adapter to"):
                client.models.delete(first.fine_tuned_model)
            root = Path(client.models.retrieve(second.fine_tuned_model).to_dict()["root"])
            merged = load_file(home / "micro" / "model.safetensors")
            LowRankChange(root).merge_into(merged)  # as vLLM would load it

    before, after = weights(home, [first]), weights(home, [first, second])
    changes = {name: after[name] - old for name, old in before.items() if "_proj." in name}
    ranks = [int(torch.linalg.matrix_rank(change, rtol=1e-3)) for change in changes.values()]
    if rank:
        assert max(ranks) <= RANK
        for name, weight in weights(home, [first, second]).items():
            torch.testing.assert_close(merged[name], weight, rtol=1e-4, atol=1e-5)
        names = {path.name for path in folder_of(home, second).iterdir()} - {"composed"}
        assert names == {"adapter_config.json", "adapter_model.safetensors", "base.json"}
        assert AdapterBase.read(folder_of(home, second)).name == first.fine_tuned_model
    else:
        assert max(ranks) > RANK


def test_a_killed_trainer_fails_its_job_and_a_killed_service_restarts_it(tmp_path):
    write_micro_model(tmp_path / "micro", scale=0.1)
    with serving(tmp_path, rank=RANK) as (process, url), connect(url) as client:
        chats = upload(client, {"messages": PROMPT + answer(ACCEPT)}, count=200)
        killed, torn = (
            create(client, "micro", chats, "supervised", n_epochs=1, batch_size=batch_size)
            for batch_size in (1, 2)
        )
        _await_steps(client, killed)
        _trainer(process).kill()
        killed = ended(client, killed)
        assert killed.status == "failed"
        assert "SIGKILL" in killed.error.message

        _await_steps(client, torn)
        trainer = _trainer(process)
        process.send_signal(signal.SIGKILL)
        process.wait(240)
        trainer.wait(240)  # the trainer ends with its service
    with serving(tmp_path, rank=RANK) as (_, url), connect(url) as client:
        again = ended(client, client.fine_tuning.jobs.retrieve(torn.id))
        assert again.status == "succeeded", again.error
        events = list(client.fine_tuning.jobs.list_events(torn.id))
        assert any("has restarted" in event.message for event in events)
        assert reply(client, again.fine_tuned_model)


def _await_steps(client, job):
    deadline = time.monotonic() + 300
    while not losses(client, job):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _trainer(process):
    (child,) = (
        child
        for child in psutil.Process(process.pid).children()
        if any("training.train" in word for word in child.cmdline())
    )
    return child


def test_a_missing_extra_is_reported_before_serving(home):
    starts = (
        "import sys; sys.modules['peft'] = None\n"
        "from ratchet.service.__main__ import main\n"
        "sys.exit(main())"
    )
    settings = {"home": str(home), "model": str(home / "micro")}
    settings["lora"] = {"rank": 2, "dropout": 0.1}
    ended = subprocess.run(
        [sys.executable, "-c", starts, json.dumps(settings)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 1
    assert "needs peft, not installed here" in ended.stderr
    assert "Traceback" not in ended.stderr
