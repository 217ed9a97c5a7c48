"""Parameters of chat agents that control their models' completions."""

from __future__ import annotations

import math

import pytest

from ratchet import HyperParameters
from ratchet.errors import ParameterError
from ratchet.experiment_files import load_experiment

EXPERIMENT = {"scenario": "code_validation", "dataset": "generated", "trainer": "pure_text_ei"}


def agents(**values):
    return HyperParameters(**EXPERIMENT, agents={"_default": values}).agents["verifier"]


def test_services_own_parameters_are_kept_as_they_are():
    extra = {"top_k": 20, "provider": {"order": ["a", "b"]}}
    agent = agents(extra_body=extra, chat_template_kwargs={"enable_thinking": False})
    assert agent.extra_body == extra
    assert agent.chat_template_kwargs == {"enable_thinking": False}
    assert agent.reasoning_effort is None


def test_they_are_overridden_one_by_one_on_the_command_line(tmp_path):
    file = tmp_path / "e.yaml"
    lines = [f"{name}: {value}" for name, value in EXPERIMENT.items()]
    file.write_text("\n".join([*lines, "agents: {_default: {extra_body: {top_k: 20}}}"]) + "\n")
    overrides = [
        "agents.verifier.chat_template_kwargs.enable_thinking=false",
        "agents.verifier.reasoning_effort=low",
    ]
    verifier = load_experiment(file, overrides).hyper_params.agents["verifier"]
    assert verifier.chat_template_kwargs == {"enable_thinking": False}
    assert (verifier.reasoning_effort, verifier.extra_body) == ("low", {"top_k": 20})


@pytest.mark.parametrize("name", ["model", "messages", "n", "stream", "seed", "max_tokens"])
def test_what_requests_have_already_is_no_extra(name):
    with pytest.raises(ParameterError, match=rf"extra_body: .*got {name}, which requests already"):
        agents(extra_body={name: 1})


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("base_url", "/proc/self/mem", "expected a URL that starts with http"),
        ("base_url", "localhost:8000/v1", "expected a URL that starts with http"),
        ("extra_body", {"end": math.nan}, "end: got nan, expected a finite number"),
        ("extra_body", {"a": [1.0, {"b": math.inf}]}, r"a\.1\.b: got inf"),
    ],
)
def test_urls_and_numbers_are_checked_when_they_are_read(name, value, expected):
    with pytest.raises(ParameterError, match=rf"agents\._default\.{name}: .*{expected}"):
        agents(**{name: value})


@pytest.mark.parametrize("url", [None, "embedded", "http://localhost:1/v1", "https://api.x.ai"])
def test_urls_of_services_are_accepted(url):
    assert agents(base_url=url).base_url == url
