"""Embedded service: started on demand, shared by processes, and stopped with its last user."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from ratchet.errors import LanguageServiceError
from ratchet.service import launch
from ratchet.service.launch import EmbeddedService, service_command
from ratchet.service.settings import API_KEY_VARIABLE

ENGINE = "fake_engine:FakeEngine"
USER = """
import sys, time
from ratchet.service.launch import EmbeddedService
service = EmbeddedService.start(sys.argv[1], model=sys.argv[2], engine="fake_engine:FakeEngine")
print(service.url, service.pid, flush=True)
time.sleep(100 if sys.argv[3] == "stay" else 0)
"""

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return tmp_path


def _start(home, **options):
    return EmbeddedService.start(
        home, **{"model": str(home / "model"), "engine": ENGINE, "seconds": 60, **options}
    )


def _user(home, end):
    command = [sys.executable, "-c", USER, str(home), str(home / "model"), end]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    url, pid = process.stdout.readline().split()
    return process, url, int(pid)


def _answers(url):
    try:
        with urllib.request.urlopen(url.removesuffix("/v1") + "/health", timeout=2) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def _ends(pid, seconds=10):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
            with open(f"/proc/{pid}/stat") as stat:
                if stat.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.05)
    return False


def test_start_up_progress_is_reported(home):
    said = []
    with _start(home, on_wait=said.append):
        assert said[0] == "Starting the model service"
        steps = ("Reading the model", "Starting the engine of model")
        assert any(step in text for text in said for step in steps), said


def test_a_started_service_answers_and_stops_after_its_context(home, monkeypatch):
    monkeypatch.setenv(API_KEY_VARIABLE, "not for the embedded one")
    with _start(home) as service:
        client = openai.OpenAI(base_url=service.url, api_key="none")
        ask = {"model": service.model, "messages": [{"role": "user", "content": "?"}]}
        assert client.chat.completions.create(**ask).choices[0].message.content
        client.close()
        assert service.url.startswith("http://127.0.0.1:")
        assert (home / "llm" / "service.json").exists()
    assert _ends(service.pid)
    assert not _answers(service.url)
    assert not (home / "llm" / "service.json").exists()


def test_responses_are_not_delayed_by_tcp_acknowledgements(home):
    with _start(home) as service, openai.OpenAI(base_url=service.url, api_key="none") as client:
        seconds = []
        for _ in range(30):
            began = time.perf_counter()
            client.models.list()
            seconds.append(time.perf_counter() - began)
    assert sorted(seconds)[10] < 0.03  # delayed acknowledgements would make each one 0.04


@pytest.mark.parametrize("end", ["kill", "leave"])
def test_it_stops_with_its_user_for_any_exit(home, end):
    process, url, pid = _user(home, "stay" if end == "kill" else "go")
    if end == "kill":
        assert _answers(url)
        process.send_signal(signal.SIGKILL)
    process.wait(240)
    assert _ends(pid)
    assert not _answers(url)


def test_a_second_user_shares_it_beyond_a_kill_of_the_first(home):
    process, url, pid = _user(home, "stay")
    with _start(home, model=None) as service:
        assert (service.url, service.pid) == (url, pid)
        process.send_signal(signal.SIGKILL)
        process.wait(240)
        time.sleep(1)
        assert _answers(url)
    assert _ends(pid)


def test_concurrent_starts_share_one_service(home):
    with ThreadPoolExecutor(6) as pool:
        services = list(pool.map(lambda _: _start(home), range(6)))
    assert len({service.pid for service in services}) == 1
    for service in services:
        service.stop()
    assert _ends(services[0].pid)


def test_after_a_killed_service_a_new_one_is_started(home):
    with _start(home) as first:
        os.kill(first.pid, signal.SIGKILL)
        assert _ends(first.pid)
        with _start(home) as second:
            assert second.pid != first.pid
            assert _answers(second.url)


def test_a_service_with_another_model_is_not_reused(home, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    with _start(home), pytest.raises(LanguageServiceError, match="serves 'model', not 'other'"):
        _start(home, model=str(other))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"engine": "no_engine:Engine"}, "No module named 'no_engine'"),
        ({"model": "no/such:model"}, "neither a local folder nor available"),
    ],
)
def test_a_failed_start_reports_the_reason(home, options, complaint):
    with pytest.raises(LanguageServiceError, match="ended with code 1") as caught:
        _start(home, **options)
    assert complaint in str(caught.value)
    assert "service.log" in str(caught.value)


@pytest.mark.parametrize(
    ("progress", "complaint"),
    [
        ("echo building, step $i > llm/starting.txt", "ended with code 3"),
        ("echo loading shard $i >> llm/service.log", "ended with code 3"),
        ("true", "showed no progress for 2 s; its log is .*service.log. It is empty."),
    ],
)
def test_a_starting_service_is_stopped_for_silence_only(home, monkeypatch, progress, complaint):
    script = f"for i in $(seq 20); do {progress}; sleep 0.2; done; exit 3"

    def spawn(settings):
        (settings.folder / "service.log").write_text("")
        return subprocess.Popen(["sh", "-c", script], cwd=home)

    monkeypatch.setattr(launch, "_spawn", spawn)
    with pytest.raises(LanguageServiceError, match=complaint):
        _start(home, seconds=2)


def test_the_command_line_refuses_a_second_service_and_public_access_without_a_key(home):
    settings = {"home": str(home), "model": str(home / "model"), "engine": ENGINE}
    command = service_command(**settings)
    with _start(home) as service:
        second = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert second.returncode == 1
        assert f"already runs for {home}/llm at {service.url}" in second.stderr
        assert "Traceback" not in second.stderr
    open_door = service_command(**settings, host="0.0.0.0")
    environment = {name: text for name, text in os.environ.items() if name != API_KEY_VARIABLE}
    ended = subprocess.run(open_door, capture_output=True, text=True, env=environment, timeout=300)
    assert ended.returncode == 1
    assert "without a key" in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_service_from_the_command_line_stops_on_a_signal(home, number):
    command = service_command(home=str(home), model=str(home / "model"), engine=ENGINE)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 300
    address = home / "llm" / "service.json"
    while not address.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    url = json.loads(address.read_text())["url"]
    while not _answers(url) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(240) == 0
    assert process.stderr.read() == ""
    assert not address.exists()
