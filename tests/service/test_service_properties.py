"""Requests generated from the service's schema: no 5xx, and responses as described."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable

schemathesis = pytest.importorskip("schemathesis")

from schemathesis import GenerationMode  # noqa: E402
from schemathesis.checks import not_a_server_error  # noqa: E402
from schemathesis.specs.openapi.checks import (  # noqa: E402
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much]


@pytest.fixture
def described(running):
    """The service's schema with ids that exist, so that requests pass the lookups."""
    with running.client() as client:
        line = b'{"messages": [{"role": "user", "content": "?"}, %s]}\n'
        data = line % b'{"role": "assistant", "content": "fine"}' * 10
        file_id = client.files.create(file=("t.jsonl", data), purpose="fine-tune").id
        job = client.fine_tuning.jobs.create(model="ratchet-tiny", training_file=file_id)
    schema = schemathesis.openapi.from_url(f"{running.url}/openapi.json")
    known = {
        "model": "ratchet-tiny",
        "training_file": file_id,
        "file_id": file_id,
        "fine_tuning_job_id": job.id,
    }

    @schema.hook
    def map_body(_, body):
        return _with_known(body, known)

    @schema.hook
    def map_path_parameters(_, values):
        return _with_known(values, known)

    return schema


def _with_known(values, known):
    """Insert an existing id instead of texts of even length."""
    if not isinstance(values, dict):
        return values
    return {
        name: known[name] if name in known and _is_even(value) else value
        for name, value in values.items()
    }


def _is_even(value):
    return isinstance(value, str) and len(value) % 2 == 0


def _check_operations(schema, examples, **options):
    """Send valid and invalid requests for each operation."""
    tried = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        for mode in GenerationMode:

            @settings(max_examples=examples, deadline=None, suppress_health_check=QUIET, **options)
            @given(case=operation.as_strategy(generation_mode=mode))
            def check(case):
                _check(case)

            with contextlib.suppress(Unsatisfiable):  # it has no invalid requests
                check()
                tried += 1
    return tried


def _check(case):
    response = case.call()
    case.validate_response(response, checks=CHECKS)
    if response.status_code >= 400 and not case.path.startswith("/health"):
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.slow
@pytest.mark.parametrize("examples", [20, pytest.param(100, marks=pytest.mark.exhaustive)])
def test_all_responses_match_the_schema(described, examples):
    assert _check_operations(described, examples, derandomize=True) >= 20
