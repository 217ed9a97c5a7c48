"""Choice of the fine-tuning backend, its parameters, and the price of its models."""

from __future__ import annotations

import pytest

from ratchet.errors import ParameterError, UnknownNameError
from ratchet.language_models.endpoints import Endpoint
from ratchet.language_models.fine_tuning_backends.base import FineTuningBackend
from ratchet.language_models.fine_tuning_backends.openai_api import OpenAiBackend
from ratchet.language_models.fine_tuning_backends.registry import build_tuning_backend, check_tuning
from ratchet.language_models.pricing import ModelPrice, PriceTable
from ratchet.parameters.chat_agents import FineTuningServiceParameters, TextAgentParameters


def test_the_backend_follows_from_the_endpoint_unless_it_is_named():
    def named(endpoint, **service):
        return type(build_tuning_backend(endpoint, FineTuningServiceParameters(**service))).__name__

    assert named(Endpoint("embedded")) == "RatchetBackend"
    assert named(Endpoint()) == named(Endpoint("http://host/v1")) == "OpenAiBackend"
    assert named(Endpoint("http://host", api_version="v")) == "AzureBackend"
    assert named(Endpoint("http://host/v1"), backend="ratchet") == "RatchetBackend"
    with pytest.raises(UnknownNameError, match="together"):
        named(Endpoint("http://host/v1"), backend="togetter")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"fine_tuning_service": {"hardware": "h100"}}, "hardware, which OpenAiBackend does not"),
        ({"fine_tuning": {"learning_rate": 1e-4}}, "learning_rate, which OpenAiBackend does not"),
        (
            {
                "fine_tuning_service": {"backend": "together"},
                "fine_tuning": {"learning_rate_multiplier": 2.0},
            },
            "expected only .*learning_rate",
        ),
    ],
)
def test_what_a_backend_does_not_read_is_refused(given, message):
    parameters = TextAgentParameters(base_url="http://host/v1", **given)
    with pytest.raises(ParameterError, match=message):
        check_tuning("prover", parameters, Endpoint.of(parameters))


def test_a_custom_backend_is_given_by_its_file(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from ratchet.language_models.fine_tuning_backends.openai_api import OpenAiBackend\n"
        "class Mine(OpenAiBackend):\n    pass\n"
    )
    service = FineTuningServiceParameters(backend="mine.py:Mine")
    backend = build_tuning_backend(Endpoint("http://host/v1"), service, str(tmp_path))
    assert type(backend).__name__ == "Mine"
    assert isinstance(backend, OpenAiBackend)
    assert isinstance(backend, FineTuningBackend)


def test_a_tuned_model_costs_what_its_base_does_whatever_a_service_calls_it():
    base, tuned = ModelPrice(1.0, 2.0, 3.0), ModelPrice(4.0, 5.0, 3.0)
    prices = PriceTable({"gpt-4.1-mini": base}, {"gpt-4.1-mini": tuned})
    for name in ("gpt-4.1-mini-2025-04-14.ft-abc", "me/llama-prover-1", "ft:gpt-4.1-mini:o::x"):
        assert prices.find(name, tuned_from="gpt-4.1-mini") == tuned
    assert prices.find("gpt-4.1-mini", tuned_from="gpt-4.1-mini") == base
    assert prices.find("me/other", tuned_from="unknown") is None
