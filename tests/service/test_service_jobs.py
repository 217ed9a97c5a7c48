"""Fine-tuning jobs through OpenAI's client: their results and failures."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import time

import openai
import pytest

from ratchet.service.api.errors import ApiError


@pytest.fixture
def served(make_service):
    with make_service().serving() as service:
        yield service


@pytest.fixture
def client(served):
    with served.client() as client:
        yield client


def _create(client, file_id, **options):
    return client.fine_tuning.jobs.create(
        model="ratchet-tiny", training_file=file_id, **{"seed": 5, **options}
    )


def _dpo(**hyperparameters):
    return {"type": "dpo", "dpo": {"hyperparameters": hyperparameters}}


def test_a_supervised_job_ends_in_a_model_that_answers(client, upload, wait_for):
    file_id = upload(client)
    options = {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 3}}}
    created = _create(client, file_id, method=options, suffix="prover", metadata={"k": "v"})
    assert created.status == "queued"
    assert created.hyperparameters.n_epochs == 3
    assert created.hyperparameters.batch_size == "auto"
    job = wait_for(client, created.id)
    assert job.status == "succeeded", job.error
    assert job.fine_tuned_model.startswith("ft:ratchet-tiny:prover:")
    assert len(job.fine_tuned_model.rsplit(":", 1)[1]) == 12
    assert (job.trained_tokens, job.seed, job.metadata) == (120, 5, {"k": "v"})
    assert job.method.supervised.hyperparameters.batch_size == 2
    assert job.finished_at >= job.created_at
    answer = client.chat.completions.create(
        model=job.fine_tuned_model, messages=[{"role": "user", "content": "?"}]
    )
    assert answer.model == job.fine_tuned_model


def test_a_job_that_starts_immediately_is_reported_as_queued_on_creation(
    served, client, upload, monkeypatch
):
    database = served.service.database
    transaction = database.transaction

    @contextlib.contextmanager
    def then_taken():
        with transaction() as connection:
            yield connection
        database.row("UPDATE jobs SET status = 'running' WHERE status = 'queued'")

    monkeypatch.setattr(database, "transaction", then_taken)
    job = _create(client, upload(client))
    assert job.status == "queued"
    assert client.fine_tuning.jobs.retrieve(job.id).status == "running"
    assert client.fine_tuning.jobs.pause(job.id).status == "paused"
    assert client.fine_tuning.jobs.resume(job.id).status == "queued"


def test_a_dpo_job_from_a_trained_model_keeps_the_base_models_name(client, upload, wait_for):
    first = wait_for(client, _create(client, upload(client)).id)
    second = client.fine_tuning.jobs.create(
        model=first.fine_tuned_model,
        training_file=upload(client, method="dpo"),
        method=_dpo(beta=0.1, n_epochs=1),
    )
    assert second.method.dpo.hyperparameters.beta == 0.1
    done = wait_for(client, second.id)
    assert done.fine_tuned_model.startswith("ft:ratchet-tiny:ratchet:")
    assert done.fine_tuned_model != first.fine_tuned_model
    assert len(list(client.models.list())) == 5  # the base, two models, two checkpoints


def test_events_checkpoints_and_metrics(client, upload, wait_for):
    job = wait_for(client, _create(client, upload(client)).id)
    events = list(client.fine_tuning.jobs.list_events(job.id, limit=2))  # several pages
    steps = [event.data["step"] for event in events if event.type == "metrics"]
    assert steps == [3, 2, 1]
    first = next(event.message for event in events if event.data.get("step") == 1)
    assert first == "Step 1/3: training loss=1.0000, validation loss=2.0000"
    assert events[0].message == f"Trained the model {job.fine_tuned_model}."
    assert "Created the job" in events[-1].message
    checkpoints = list(client.fine_tuning.jobs.checkpoints.list(job.id))
    assert [checkpoint.step_number for checkpoint in checkpoints] == [3, 2]
    assert checkpoints[0].fine_tuned_model_checkpoint == job.fine_tuned_model
    assert [checkpoint.metrics.valid_loss for checkpoint in checkpoints] == [2 / 3, 1.0]
    assert checkpoints[1].metrics.full_valid_loss == 1.0
    early = client.models.retrieve(checkpoints[1].fine_tuned_model_checkpoint)
    assert early.id == f"{job.fine_tuned_model}:ckpt-step-2"
    text = client.files.content(job.result_files[0]).text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["train_loss"] for row in rows] == ["1.0", "0.5", str(1 / 3)]
    assert set(rows[0]) == {"step", "epoch", "train_loss", "valid_loss"}


def test_equal_jobs_in_two_homes_create_models_of_one_name(
    make_service, tmp_path, upload, wait_for
):
    names = []
    for home in ("a", "b"):
        with make_service(tmp_path / home).serving() as service, service.client() as client:
            names += [wait_for(client, _create(client, upload(client)).id).fine_tuned_model]
            if home == "b":
                names += [wait_for(client, _create(client, upload(client)).id).fine_tuned_model]
                other = upload(client, word="other")
                names += [wait_for(client, _create(client, other).id).fine_tuned_model]
    assert names[0] == names[1]
    assert names[2] == f"{names[0]}-2"
    assert not names[3].startswith(names[0])


def test_a_trainer_that_raises_fails_the_job_with_its_last_lines(gate, client, upload, wait_for):
    (gate / "open").touch()
    (gate / "raise").touch()
    job = wait_for(client, _create(client, upload(client)).id)
    assert job.status == "failed"
    assert job.error.code == "training_failed"
    assert job.error.message.startswith("The trainer ended with code 1. Its last lines:")
    assert "what came before" in job.error.message
    assert job.error.message.endswith("ValueError: the loss is not finite")
    assert job.fine_tuned_model is None
    (gate / "raise").unlink()
    assert wait_for(client, _create(client, upload(client)).id).status == "succeeded"


def test_a_killed_trainer_fails_the_job(gate, client, upload, wait_for):
    (gate / "open").touch()
    (gate / "die").touch()
    job = wait_for(client, _create(client, upload(client)).id)
    assert job.status == "failed"
    assert "SIGKILL (perhaps the memory is short" in job.error.message
    assert job.error.message.endswith("about to be killed")


def test_jobs_run_one_at_a_time_and_cancelling_kills(gate, client, upload, wait_for):
    file_id = upload(client)
    first, second = _create(client, file_id, seed=1), _create(client, file_id, seed=2)
    wait_for(client, first.id, "running")
    pids = _pids(gate, 1)
    assert wait_for(client, second.id, "queued").status == "queued"
    assert client.fine_tuning.jobs.cancel(first.id).status == "cancelled"
    assert len(_pids(gate, 2)) == 2
    assert not _lives(pids[0])
    client.fine_tuning.jobs.cancel(second.id)
    with pytest.raises(openai.BadRequestError, match="has ended already: cancelled"):
        client.fine_tuning.jobs.cancel(second.id)
    assert [model.id for model in client.models.list()] == ["ratchet-tiny"]


def test_jobs_are_listed_by_page_and_by_metadata(gate, client, upload):
    file_id = upload(client)
    made = [_create(client, file_id, metadata={"k": str(number % 2)}) for number in range(5)]
    bare = _create(client, file_id)
    newest_first = [job.id for job in reversed([*made, bare])]
    jobs = client.fine_tuning.jobs
    assert [job.id for job in jobs.list(limit=2)] == newest_first
    page = jobs.list(limit=2, after=newest_first[1])
    assert [job.id for job in page.data] == newest_first[2:4]
    assert page.has_more
    odd = [job.id for job in jobs.list(metadata={"k": "1"}, limit=1)]
    assert odd == [made[3].id, made[1].id]
    assert jobs.list(metadata={"k": "1", "none": "x"}).data == []
    assert [job.id for job in jobs.list(extra_query={"metadata": "null"})] == [bare.id]


@pytest.mark.parametrize(
    ("options", "status", "param"),
    [
        ({"model": "none"}, 404, "model"),
        ({"training_file": "file-none"}, 404, "training_file"),
        ({"validation_file": "file-none"}, 404, "validation_file"),
        ({"method": _dpo()}, 400, "training_file"),
        ({"method": {"type": "reinforcement"}}, 400, "method"),
        ({"method": _dpo(beta="much")}, 400, "method.dpo.hyperparameters.beta"),
        ({"method": _dpo(bets=1)}, 400, "method.dpo.hyperparameters.bets"),
        ({"hyperparameters": {"n_epochs": 0}}, 400, "hyperparameters.n_epochs"),
        ({"suffix": "a:b"}, 400, "suffix"),
        ({"metadata": {"k": 1}}, 400, "metadata.k"),
        ({"extra_body": {"epochs": 3}}, 400, "epochs"),
    ],
)
def test_an_invalid_job_is_refused(running, upload, options, status, param):
    client = running.client()
    file_id = upload(client)
    with pytest.raises(openai.APIStatusError) as caught:
        client.fine_tuning.jobs.create(
            **{"model": "ratchet-tiny", "training_file": file_id, **options}
        )
    assert (caught.value.status_code, caught.value.param) == (status, param)


def test_too_few_examples_and_result_files_as_examples_are_refused(client, upload, wait_for):
    with pytest.raises(openai.BadRequestError, match="at least 10"):
        _create(client, upload(client, count=9))
    job = wait_for(client, _create(client, upload(client)).id)
    with pytest.raises(openai.BadRequestError, match="fine-tune-results"):
        _create(client, job.result_files[0])


def test_a_deleted_model_is_removed_unless_a_job_needs_it(gate, served, client, upload, wait_for):
    (gate / "open").touch()
    file_id = upload(client)
    name = wait_for(client, _create(client, file_id).id).fine_tuned_model
    ask = {"messages": [{"role": "user", "content": "?"}], "model": name}
    client.chat.completions.create(**ask)
    (gate / "open").unlink()
    job = client.fine_tuning.jobs.create(model=name, training_file=file_id)
    with pytest.raises(openai.ConflictError, match=job.id):
        client.models.delete(name)
    with pytest.raises(openai.ConflictError, match=job.id):
        client.files.delete(file_id)
    client.fine_tuning.jobs.cancel(job.id)
    assert client.models.delete(name).deleted
    assert client.files.delete(file_id).deleted
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(**ask)
    with pytest.raises(ApiError):
        served.service.models.get(name)
    assert name in served.engine.unloaded
    assert not any(name in str(path) for path in served.service.models.folder.iterdir())


def _pids(gate, count):
    deadline = time.monotonic() + 10
    while True:
        lines = (gate / "pids").read_text().split() if (gate / "pids").exists() else []
        if len(lines) >= count:
            return [int(line) for line in lines]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
