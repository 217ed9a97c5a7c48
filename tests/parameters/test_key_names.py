"""A name of a key is written everywhere, so a key in its place is refused, and not repeated."""

from __future__ import annotations

import re

import pytest

from ratchet.errors import ParameterError
from ratchet.language_models.endpoints import Endpoint
from ratchet.parameters.hyper_parameters import HyperParameters

KEYS = (
    "sk-proj-Ab3dEf6hIj9kLmNoPqRsTuVwXyZ0123456789",
    "0123456789abcdef0123456789abcdef",
    "0123456789ABCDEF0123456789ABCDEF",
    "A123456789BCDEF0123456789ABCDEF0",
    "Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4Zm9v",
    "AKIAIOSFODNN7EXAMPLE",
    "hf_QwErTyUiOpAsDfGhJkLzXcVbNm",
    "my-key",
    "",
)
NAMES = ("OPENAI_API_KEY", "_KEY2", "AZURE_OPENAI_KEY_EASTUS2", "K", "prefect-secret:my-key")


def parameters(name):
    agents = {"_default": {"api_key_name": name}}
    return HyperParameters(
        scenario="code_validation", trainer="pure_text_ei", dataset="generated", agents=agents
    )


@pytest.mark.parametrize("key", KEYS)
def test_a_key_is_refused_and_not_repeated(key):
    for make in (parameters, lambda name: Endpoint("http://127.0.0.1:9/v1", name)):
        with pytest.raises(ParameterError, match="expected the name of the env") as caught:
            make(key)
        said = str(caught.value) + repr(caught.value.__cause__)
        assert "api_key_name" in said
        assert key[:8] == "" or key[:8] not in re.sub("MY_API_KEY", "", said)


@pytest.mark.parametrize("name", NAMES)
def test_names_of_variables_and_secret_blocks_are_taken(name):
    assert parameters(name).agents["prover"].api_key_name == name
    assert Endpoint("http://127.0.0.1:9/v1", name).api_key_name == name
