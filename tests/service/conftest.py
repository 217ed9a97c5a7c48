"""A model service on a free local port, with an engine that generates words from hashes."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import openai
import pytest
import uvicorn

from ratchet.language_models.engines.torch_engine import TorchEngine
from ratchet.service.api.app import create_app
from ratchet.service.launch import ServiceAddress, service_command
from ratchet.service.models import StoredModel
from ratchet.service.service import ModelService
from ratchet.service.serving import server_config
from ratchet.service.settings import ServiceSettings

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # settings of child processes, by their environment

from fake_engine import FakeEngine  # noqa: E402
from micro_model import write_micro_model  # noqa: E402


class RunningService:
    """A service in threads of this process."""

    def __init__(
        self, home, engine, *, model=None, trainer="fake_trainer", further=None, **settings
    ):
        folder = model or home / "tiny"
        if model is None:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "config.json").write_text("{}")
        self.engine = engine
        self.settings = ServiceSettings(home=home, **settings)
        base = StoredModel("ratchet-tiny", folder, "ratchet-tiny")
        parts = (self.settings, base, lambda: engine)
        self.service = ModelService(*parts, trainer=trainer, further=further)
        self.app = create_app(self.service, instance="test")

    @contextlib.contextmanager
    def serving(self):
        with socket.socket(proto=socket.IPPROTO_TCP) as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(512)
            server = uvicorn.Server(server_config(self.app, self.settings.limits))
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
            thread.start()
            try:
                self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
                self.service.batcher.ready.result(10)
                while not server.started:
                    time.sleep(0.005)
                yield self
            finally:
                server.should_exit = True
                thread.join()

    def client(self, **options):
        chosen = {"api_key": "none", "max_retries": 0, "timeout": 30, **options}
        return openai.OpenAI(base_url=f"{self.url}/v1", **chosen)

    def async_client(self, **options):
        chosen = {"api_key": "none", "max_retries": 0, "timeout": 30, **options}
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", **chosen)


@pytest.fixture(scope="session", autouse=True)
def _trainer_is_found():
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), before]))
    yield
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


@pytest.fixture(scope="session")
def running_service():
    """The class, for tests with a custom model and trainer."""
    return RunningService


@pytest.fixture
def make_service(tmp_path):
    """Return a function that starts a service in a separate home, or again in the same one."""

    def make(home=tmp_path, *, seconds=0.0, **settings):
        return RunningService(home, FakeEngine(seconds), **settings)

    return make


@pytest.fixture
def micro_service(tmp_path):
    """A process that serves and trains a model of a few thousand weights; and its URL."""
    model = write_micro_model(tmp_path / "ratchet-tiny")
    process = subprocess.Popen(service_command(home=str(tmp_path), model=str(model)))
    try:
        deadline = time.monotonic() + 300
        while (address := ServiceAddress.read(tmp_path / "llm")) is None:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield process, address.url
    finally:
        process.terminate()
        process.wait(240)


@pytest.fixture(scope="module")
def micro_served(tmp_path_factory):
    """A service of a model of a few thousand weights, in this process."""
    home = tmp_path_factory.mktemp("home")
    model = write_micro_model(home / "ratchet-tiny")
    with RunningService(home, TorchEngine(), model=model).serving() as service:
        yield service


@pytest.fixture(scope="module")
def tinker_client(micro_served):
    """A client of that service, of the package ``tinker``, if installed."""
    tinker = pytest.importorskip("tinker")
    client = tinker.ServiceClient(base_url=micro_served.url, api_key="tml-none")
    yield client
    client.holder.close()


@pytest.fixture(scope="module")
def rest_client(micro_served):
    """The client of that package that lists and manages saved weights."""
    tinker = pytest.importorskip("tinker")
    return tinker.RestClient(base_url=micro_served.url, api_key="tml-none")


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """One service for all tests of a module."""
    with RunningService(tmp_path_factory.mktemp("home"), FakeEngine()).serving() as service:
        yield service


@pytest.fixture
def client(running):
    with running.client() as client:
        yield client


@pytest.fixture
def gate(tmp_path, monkeypatch):
    """A folder; the trainer does not finish until it contains the file ``open``."""
    folder = tmp_path / "gate"
    folder.mkdir()
    monkeypatch.setenv("FAKE_TRAINER_GATE", str(folder))
    return folder


def _supervised(count, word):
    chat = [{"role": "user", "content": word}, {"role": "assistant", "content": "fine"}]
    return "".join(
        json.dumps(
            {
                "messages": chat,
            }
        )
        + "\n"
        for _ in range(count)
    ).encode()


def _preferences(count):
    example = {
        "input": {"messages": [{"role": "user", "content": "?"}]},
        "preferred_output": [{"role": "assistant", "content": "yes"}],
        "non_preferred_output": [{"role": "assistant", "content": "no"}],
    }
    return (json.dumps(example) + "\n").encode() * count


@pytest.fixture
def upload():
    """Return a function that uploads a training file and returns its id."""

    def upload(client, *, count=10, method="supervised", word="?", data=None):
        if data is None:
            data = _supervised(count, word) if method == "supervised" else _preferences(count)
        return client.files.create(file=("train.jsonl", data), purpose="fine-tune").id

    return upload


@pytest.fixture
def wait_for():
    """Return a function that waits until a job has a status."""

    def wait(client, job_id, *statuses, seconds=20):
        deadline = time.monotonic() + seconds
        while True:
            job = client.fine_tuning.jobs.retrieve(job_id)
            if job.status in (statuses or ("succeeded", "failed", "cancelled")):
                return job
            assert time.monotonic() < deadline, f"{job_id} is still {job.status}"
            time.sleep(0.02)

    return wait
