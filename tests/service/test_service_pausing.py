"""Paused and resumed jobs, and their intermediate models."""

from __future__ import annotations

import os
import time

import openai
import pytest
from micro_model import write_micro_model

from ratchet.language_models.engines.torch_engine import TorchEngine
from ratchet.service.jobs.runner import TRAINER

MODEL = "ratchet-tiny"


def _create(client, file_id, **options):
    return client.fine_tuning.jobs.create(model=MODEL, training_file=file_id, **options)


def _pids(gate):
    file = gate / "pids"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def _is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _wait_until(condition):
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_paused_job_stops_and_does_not_block_others_until_resumed(
    make_service, gate, upload, wait_for
):
    with make_service().serving() as service, service.client() as client:
        file_id = upload(client)
        first, second = _create(client, file_id, seed=1), _create(client, file_id, seed=2)
        _wait_until(lambda: len(_pids(gate)) == 1)
        (trainer,) = _pids(gate)
        assert client.fine_tuning.jobs.pause(first.id).status == "paused"
        _wait_until(lambda: not _is_alive(trainer))
        with pytest.raises(openai.BadRequestError, match="is paused"):
            client.fine_tuning.jobs.pause(first.id)
        (gate / "open").touch()
        assert wait_for(client, second.id).status == "succeeded"
        assert client.fine_tuning.jobs.retrieve(first.id).status == "paused"
        with pytest.raises(openai.ConflictError, match="needs the file"):
            client.files.delete(file_id)
        assert client.fine_tuning.jobs.resume(first.id).status == "queued"
        assert wait_for(client, first.id).status == "succeeded"
        with pytest.raises(openai.BadRequestError, match="has ended already"):
            client.fine_tuning.jobs.resume(first.id)


def test_a_paused_job_stays_paused_after_a_restart_and_can_be_cancelled(
    make_service, gate, upload, wait_for
):
    with make_service().serving() as service, service.client() as client:
        job = _create(client, upload(client))
        client.fine_tuning.jobs.pause(job.id)
    (gate / "open").touch()
    with make_service().serving() as service, service.client() as client:
        other = _create(client, upload(client), seed=5)
        wait_for(client, other.id)
        assert client.fine_tuning.jobs.retrieve(job.id).status == "paused"
        assert client.fine_tuning.jobs.cancel(job.id).status == "cancelled"


@pytest.mark.slow
def test_the_plain_trainers_checkpoints_can_be_called_as_models(
    tmp_path, running_service, upload, wait_for
):
    folder = write_micro_model(tmp_path / "micro")
    options = {"model": folder, "trainer": TRAINER}
    service = running_service(tmp_path, TorchEngine(), **options)
    with service.serving(), service.client() as client:
        strong = {"n_epochs": 4, "batch_size": 5, "learning_rate_multiplier": 20}
        method = {"type": "supervised", "supervised": {"hyperparameters": strong}}
        job = _create(client, upload(client, word="add 4"), method=method, seed=1)
        job = wait_for(client, job.id, seconds=60)
        assert job.status == "succeeded", job.error
        checkpoints = list(client.fine_tuning.jobs.checkpoints.list(job.id))
        assert [checkpoint.step_number for checkpoint in checkpoints] == [8, 6, 4]
        names = [checkpoint.fine_tuned_model_checkpoint for checkpoint in checkpoints]
        assert names[0] == job.fine_tuned_model
        scores = [_score(client, name) for name in (MODEL, *reversed(names))]
        assert len(set(scores)) == 4
        assert scores[-1] > scores[0]


def _score(client, model):
    """Return the log-probability of the trained completion."""
    answer = client.completions.create(
        model=model,
        prompt="<|user|>add 4<|end|><|assistant|>fine",
        echo=True,
        logprobs=0,
        max_tokens=0,
    )
    return sum(answer.choices[0].logprobs.token_logprobs[-4:])
