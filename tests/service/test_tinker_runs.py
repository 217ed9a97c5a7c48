"""The ``tinker`` client lists and manages runs and checkpoints of Ratchet's service."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from micro_model import write_micro_model

from ratchet.language_models.engines.torch_engine import TorchEngine

tinker = pytest.importorskip("tinker")

MODEL = "ratchet-tiny"


def run_client(url: str, key: str, *words: str) -> str:
    """Run the client's command line and return its output.

    Its daemon threads can abort the interpreter at exit, after the output.
    """
    command = [sys.executable, "-m", "tinker.cli", *words]
    access = {"TINKER_BASE_URL": url, "TINKER_API_KEY": key}
    done = subprocess.run(command, env=os.environ | access, capture_output=True, text=True)
    assert done.returncode in (0, -signal.SIGABRT), done.stderr
    return done.stdout


def test_runs_and_checkpoints_are_listed_and_managed(micro_served, tinker_client, rest_client):
    metadata = {"renderer_name": "role_colon"}
    training = tinker_client.create_lora_training_client(
        base_model=MODEL, rank=2, user_metadata=metadata
    ).result()
    state = training.save_state("a", ttl_seconds=3600, user_metadata={"k": "v"}).result(timeout=300)
    sampler = training.save_weights_for_sampler("b").result(timeout=300)
    rest, run = rest_client, training.model_id
    assert state.path == f"tinker://{run}/weights/a"
    assert sampler.path == f"tinker://{run}/sampler_weights/b"
    page = rest.list_training_runs(limit=1).result(timeout=300)
    assert [each.training_run_id for each in page.training_runs] == [run]
    assert page.cursor.total_count >= 1
    for found in (
        rest.get_training_run(run).result(timeout=300),
        rest.get_training_run_by_tinker_path(state.path).result(timeout=300),
    ):
        assert (found.base_model, found.lora_rank, found.user_metadata) == (MODEL, 2, metadata)
        assert found.last_checkpoint.tinker_path == state.path
        assert found.last_sampler_checkpoint.checkpoint_id == "sampler_weights/b"
    newest, oldest = rest.list_checkpoints(run).result(timeout=300).checkpoints
    assert (newest.checkpoint_type, oldest.checkpoint_type) == ("sampler", "training")
    assert (oldest.expires_at - oldest.time).total_seconds() == 3600
    assert oldest.size_bytes > 0
    assert oldest.user_metadata == {"k": "v"}
    rest.set_checkpoint_ttl_from_tinker_path(state.path, None).result(timeout=300)
    rest.publish_checkpoint_from_tinker_path(state.path).result(timeout=300)
    listed = rest.list_user_checkpoints(limit=1, offset=1).result(timeout=300)
    assert [(c.public, c.expires_at) for c in listed.checkpoints] == [(True, None)]
    rest.unpublish_checkpoint_from_tinker_path(state.path).result(timeout=300)
    info = rest.get_weights_info_by_tinker_path(state.path).result(timeout=300)
    assert (info.base_model, info.is_lora, info.lora_rank) == (MODEL, True, 2)
    session = run.partition(":")[0]
    assert session in rest.list_sessions().result(timeout=300).sessions
    assert run in rest.get_session(session).result(timeout=300).training_run_ids
    rest.delete_checkpoint_from_tinker_path(state.path).result(timeout=300)
    assert [c.name for c in micro_served.service.training.checkpoints.page(run)[0]] == ["b"]
    with pytest.raises(tinker.NotFoundError, match="a client requested it"):
        rest.get_weights_info_by_tinker_path(state.path).result(timeout=300)


def test_a_checkpoint_in_use_is_not_deleted(micro_served, tinker_client, rest_client):
    training = tinker_client.create_lora_training_client(base_model=MODEL, rank=2).result()
    path = training.save_state("start").result(timeout=300).path
    tinker_client.create_training_client_from_state_with_optimizer(path).result(timeout=300)
    with pytest.raises(tinker.BadRequestError, match="starts from"):
        rest_client.delete_checkpoint_from_tinker_path(path).result(timeout=300)


@pytest.mark.slow
def test_the_clients_command_line_lists_runs_and_checkpoints(micro_served, tinker_client):
    training = tinker_client.create_lora_training_client(base_model=MODEL, rank=2).result()
    path = training.save_state("by-cli").result(timeout=300).path
    for words, shown in (
        (["run", "list"], training.model_id),
        (["checkpoint", "list", "--run-id", training.model_id], path),
    ):
        assert shown in run_client(micro_served.url, "tml-none", "--format", "json", *words)


@pytest.mark.slow
def test_the_clients_command_line_downloads_weights(tmp_path, running_service):
    model = write_micro_model(tmp_path / MODEL)
    key = "tml-secret"
    running = running_service(tmp_path / "home", TorchEngine(), model=model, api_key=key)
    with running.serving() as service:
        client = tinker.ServiceClient(base_url=service.url, api_key=key)
        training = client.create_lora_training_client(base_model=MODEL, rank=2).result()
        path = training.save_state("state").result(timeout=300).path
        run_client(service.url, key, "checkpoint", "download", path, "-o", str(tmp_path))
        model_id = service.service.training.checkpoints.get(path.removeprefix("tinker://")).model
        saved = service.service.models.get(model_id).folder
        client.holder.close()
    folder = tmp_path / path.removeprefix("tinker://").replace("/", "_")
    name = "adapter_model.safetensors"
    assert (folder / name).read_bytes() == (saved / name).read_bytes()
    assert {file.name for file in folder.iterdir()} == {name, "adapter_config.json"}


def test_downloads_need_a_signature_that_is_valid(micro_served, tinker_client, rest_client):
    training = tinker_client.create_lora_training_client(base_model=MODEL, rank=2).result()
    path = training.save_weights_external("export").result(timeout=300).path
    urls = rest_client.get_external_weights_urls(path).result(timeout=300).urls
    url = urls["adapter_model.safetensors"]
    with urlopen(url) as answer:
        assert len(answer.read()) > 0
    expired = re.sub("expires=[0-9]+", f"expires={int(time.time()) - 1}", url)
    for refused in (url[:-4] + "0000", expired):
        with pytest.raises(HTTPError, match="403"):
            urlopen(refused)
    with pytest.raises(HTTPError, match="404"):
        urlopen(url.replace("adapter_model.safetensors", "optimizer.safetensors"))
