"""Slow clients and invalid requests do not affect other clients."""

from __future__ import annotations

import json
import socket
import time

import openai
import pytest
from micro_model import write_micro_model

from ratchet.language_models.engines.torch_engine import TorchEngine
from ratchet.service.settings import Limits

ASK = {"model": "ratchet-tiny", "messages": [{"role": "user", "content": "?"}]}
BODY = json.dumps(ASK).encode()
HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n" % len(BODY)
)


@pytest.fixture(scope="module")
def dawdled(tmp_path_factory, running_service):
    from fake_engine import FakeEngine

    home = tmp_path_factory.mktemp("home")
    limits = Limits(idle_seconds=1, bytes_per_second=1000)
    with running_service(home, FakeEngine(), limits=limits).serving() as service:
        yield service


def _until_closed(service, *drops, before=b"", pause=0.1):
    """Send one byte at a time; return the response and the seconds until the end."""
    host, port = service.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        if before:
            connection.sendall(before)
            assert b"200 OK" in connection.recv(65536)
        start, answer = time.monotonic(), b""
        connection.settimeout(pause)
        for drop in (*drops, *[b""] * 100):
            try:
                connection.sendall(drop)
                got = connection.recv(65536)
            except TimeoutError:
                continue
            except ConnectionError:
                break
            if not got:
                break
            answer += got
        return answer, time.monotonic() - start


@pytest.mark.slow
@pytest.mark.parametrize(
    ("drops", "before"),
    [
        pytest.param([], b"", id="nothing"),
        pytest.param([HEAD[:20]], b"", id="half a head"),
        pytest.param([bytes([byte]) for byte in HEAD], b"", id="a head letter by letter"),
        pytest.param([], HEAD + BODY, id="nothing after an answer"),
        pytest.param([HEAD[:20]], HEAD + BODY, id="half a head after an answer"),
        pytest.param([HEAD], b"", id="no body"),
        pytest.param([HEAD, *[bytes([byte]) for byte in BODY[:-1]]], b"", id="a body by letters"),
    ],
)
def test_connections_that_stall_are_closed(dawdled, drops, before):
    answer, seconds = _until_closed(dawdled, *drops, before=before)
    assert 0.8 < seconds < 4
    assert (b"408" in answer) == (HEAD in drops)


def test_an_endless_header_is_refused_before_its_timeout(dawdled):
    endless = [HEAD[:-2] + b"X-Long: ", *[b"x" * 10_000] * 20]
    answer, seconds = _until_closed(dawdled, *endless, pause=0.02)
    assert b"400 Bad Request" in answer
    assert seconds < 0.8


@pytest.mark.slow
def test_timely_requests_are_answered_on_one_connection(dawdled):
    pieces = [HEAD[:30], HEAD[30:], BODY[:10], BODY[10:]]
    answer, _ = _until_closed(dawdled, *pieces, *pieces)
    assert answer.count(b"200 OK") == 2


@pytest.mark.slow
def test_a_response_may_take_longer_than_the_idle_timeout(tmp_path, running_service):
    from fake_engine import FakeEngine

    service = running_service(tmp_path, FakeEngine(1.5), limits=Limits(idle_seconds=1))
    with service.serving(), service.client() as client:
        assert client.chat.completions.create(**ASK).choices


def test_a_prompt_beyond_any_context_is_refused_immediately(tmp_path, running_service, monkeypatch):
    model = write_micro_model(tmp_path / "m")
    service = running_service(tmp_path, TorchEngine(), model=model)
    with service.serving(), service.client() as client:
        assert client.chat.completions.create(**ASK, max_tokens=1).choices
        tokenizer = service.engine._loaded["ratchet-tiny"].tokenizer
        monkeypatch.setattr(tokenizer, "_encode", None)  # it is not tokenized
        long = {**ASK, "messages": [{"role": "user", "content": "x" * 7_000_000}]}
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(**long)
        assert caught.value.code == "context_length_exceeded"
        assert "7000" in str(caught.value)
