"""Access control: keys, hosts, sizes, queues."""

from __future__ import annotations

import http.client
import json

import openai
import pytest

from ratchet.errors import ParameterError
from ratchet.service.settings import Limits, ServiceSettings

ASK = {"model": "ratchet-tiny", "messages": [{"role": "user", "content": "?"}]}


def _raw(url, method, path, body=b"", **headers):
    host, port = url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    try:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, given)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")
    finally:
        connection.close()


def test_a_key_is_required_except_on_loopback(tmp_path):
    for host in ("0.0.0.0", "::", "192.168.1.2", "example.org"):
        with pytest.raises(ParameterError, match="without a key"):
            ServiceSettings(home=tmp_path, host=host)
        assert "hidden" not in repr(ServiceSettings(home=tmp_path, host=host, api_key="hidden"))
    with pytest.raises(ParameterError, match="is empty"):
        ServiceSettings(home=tmp_path, api_key="")
    for host in ("127.0.0.1", "::1", "localhost"):
        assert ServiceSettings(home=tmp_path, host=host).is_loopback


def test_a_wrong_key_is_refused_and_not_echoed(make_service):
    with make_service(api_key="right-key").serving() as service:
        with service.client(api_key="right-key") as client:
            assert client.chat.completions.create(**ASK).choices
        for key in ("wrong-key", "right-ke", "right-key2", "ünïcode"):
            status, body = _raw(
                service.url, "GET", "/v1/models", Authorization=f"Bearer {key}".encode()
            )
            assert (status, body["error"]["code"]) == (401, "invalid_api_key")
            assert "right-key" not in str(body)
            assert key not in str(body)
        with pytest.raises(openai.AuthenticationError), service.client(api_key="x") as client:
            client.models.list()
        assert _raw(service.url, "GET", "/v1/models")[0] == 401
        assert _raw(service.url, "GET", "/health")[1]["status"] == "ok"


def test_web_pages_of_other_origins_are_refused(running):
    for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}):
        status, body = _raw(running.url, "GET", "/v1/models", **headers)
        assert (status, body["error"]["code"]) == (403, "foreign_host")
    assert _raw(running.url, "GET", "/v1/models", Origin="http://localhost:3000")[0] == 200


def test_requests_larger_than_the_limits_are_refused(make_service, upload):
    limits = Limits(request_bytes=2000, upload_bytes=4000, examples_max=20)
    with make_service(limits=limits).serving() as service, service.client() as client:
        long = {**ASK, "messages": [{"role": "user", "content": "x" * 3000}]}
        with pytest.raises(openai.APIStatusError) as caught:
            client.chat.completions.create(**long)
        assert (caught.value.status_code, caught.value.code) == (413, "request_too_large")
        body = json.dumps(long).encode()
        pieces = iter([body[:1000], body[1000:]])  # chunked: no length is announced
        status, answer = _raw(service.url, "POST", "/v1/chat/completions", pieces)
        assert (status, answer["error"]["code"]) == (413, "request_too_large")
        with pytest.raises(openai.APIStatusError) as caught:
            upload(client, count=60)
        assert caught.value.status_code == 413
        with pytest.raises(openai.BadRequestError, match="more than 20 examples"):
            upload(client, count=21)
        assert upload(client, count=20)


def test_a_full_job_queue_is_reported(gate, make_service, upload):
    limits = Limits(queued_jobs=2)
    with make_service(limits=limits).serving() as service, service.client() as client:
        file_id = upload(client)
        create = {"model": "ratchet-tiny", "training_file": file_id}
        jobs = [client.fine_tuning.jobs.create(**create) for _ in range(2)]
        with pytest.raises(openai.RateLimitError) as caught:
            client.fine_tuning.jobs.create(**create)
        assert caught.value.code == "queue_full"
        assert caught.value.response.headers["retry-after"] == "10"
        client.fine_tuning.jobs.cancel(jobs[1].id)
        client.fine_tuning.jobs.create(**create)


def test_errors_for_unknown_paths_and_methods_have_openais_format(running):
    assert _raw(running.url, "GET", "/v1/none")[1]["error"]["type"] == "invalid_request_error"
    status, body = _raw(running.url, "PUT", "/v1/files")
    assert status == 405
    assert "PUT /v1/files" in body["error"]["message"]
    status, body = _raw(running.url, "POST", "/v1/chat/completions", b'{"model": "\\ud800"}')
    assert (status, body["error"]["code"]) == (400, "invalid_json")
    status, body = _raw(running.url, "POST", "/v1/chat/completions", b"[" * 5000)
    assert (status, body["error"]["code"]) == (400, "invalid_json")
