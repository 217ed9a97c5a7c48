"""What the vLLM engine asks of vLLM, shown with a stand-in; the real one needs a GPU."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from micro_model import write_micro_model

from ratchet.errors import LanguageServiceError, ParameterError
from ratchet.language_models.service.engine.interface import (
    EmbeddingRequest,
    GenerationRequest,
    PromptToken,
    RequestRefusedError,
    TokenChoice,
)
from ratchet.language_models.service.engine.vllm_engine import VllmEngine
from ratchet.language_models.types import ChatMessage

_CHOICES = {
    1: SimpleNamespace(logprob=-2.0, decoded_token="a"),
    2: SimpleNamespace(logprob=-0.5, decoded_token="b"),
}


class FakeLlm:
    made: list = []  # noqa: RUF012 -- one list for all

    def __init__(self, model):
        FakeLlm.made.append(model)
        self.llm_engine = SimpleNamespace(model_config=SimpleNamespace(max_model_len=10))

    def generate(self, prompts, samplings, use_tqdm):
        return [
            SimpleNamespace(
                prompt_token_ids=prompt["prompt_token_ids"],
                prompt_logprobs=[None, *(_CHOICES for _ in prompt["prompt_token_ids"][1:])],
                outputs=[_answer(sampling)],
            )
            for prompt, sampling in zip(prompts, samplings, strict=True)
        ]


def _answer(sampling):
    return SimpleNamespace(
        text=f"{sampling['seed']}",
        finish_reason="length" if sampling["max_tokens"] == 1 else "stop",
        token_ids=[1],
        logprobs=None if sampling["logprobs"] is None else [_CHOICES],
    )


@pytest.fixture
def engine(monkeypatch, tmp_path):
    FakeLlm.made = []
    stand_in = SimpleNamespace(LLM=FakeLlm, SamplingParams=lambda **values: values)
    monkeypatch.setitem(sys.modules, "vllm", stand_in)
    engine = VllmEngine()
    for name in ("a", "b"):
        folder = write_micro_model(tmp_path / name)
        (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
        engine.load(name, folder)
    return engine


def _request(content, **options):
    return GenerationRequest("a", (ChatMessage("user", content),), 3, **options)


def test_answers_stand_in_the_place_of_their_requests(engine):
    answers = engine.generate([_request("1234"), _request("x" * 10), _request("1", max_tokens=1)])
    assert (answers[0].text, answers[0].prompt_tokens, answers[0].finish_reason) == ("3", 4, "stop")
    assert isinstance(answers[1], RequestRefusedError)
    assert answers[1].code == "context_length_exceeded"
    assert answers[2].finish_reason == "length"


def test_sampling_parameters_are_handed_on(engine):
    sampling = engine._sampling(_request("1", top_p=0.5, repetition_penalty=1.5), 10)
    assert (sampling["top_p"], sampling["repetition_penalty"]) == (0.5, 1.5)


def test_what_is_said_is_text_and_what_cannot_be_is_one_requests_refusal(engine, monkeypatch):
    chats = [_request("<|end|>"), _request("x" * 10_000), _request("1")]
    read = []
    generate = FakeLlm.generate
    monkeypatch.setattr(
        FakeLlm,
        "generate",
        lambda self, prompts, *rest, **more: (
            read.extend(prompts) or generate(self, prompts, *rest, **more)
        ),
    )
    answers = engine.generate(chats)
    assert len(read[0]["prompt_token_ids"]) == len("<|end|>")
    assert answers[1].code == "context_length_exceeded"
    assert answers[2].prompt_tokens == 1


def test_log_probabilities_are_those_of_the_chosen_token_and_the_likeliest(engine):
    (answer,) = engine.generate([_request("1", logprobs=True, top_logprobs=1)])
    assert [(token.token, token.logprob) for token in answer.tokens] == [("a", -2.0)]
    assert answer.tokens[0].top == (TokenChoice("b", -0.5),)


def test_schemas_echoes_and_tools_are_passed_as_vllm_takes_them(engine, monkeypatch):
    passed = []
    params = SimpleNamespace(StructuredOutputsParams=lambda json: ("json", json))
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", params)
    vllm = sys.modules["vllm"]
    monkeypatch.setattr(vllm, "SamplingParams", lambda **v: passed.append(v) or v)
    engine.generate([_request("1", schema="{}"), _request("1")])
    assert passed[0]["structured_outputs"] == ("json", "{}")
    assert "structured_outputs" not in passed[1]
    scored = GenerationRequest(
        "a", (), 3, prompt=(5, 2), echo=True, logprobs=True, top_logprobs=1, max_tokens=0
    )
    (answer,) = engine.generate([scored])
    assert (passed[2]["prompt_logprobs"], passed[2]["max_tokens"]) == (1, 1)
    first = engine._tokenizers["a"].token_text(5)
    assert answer.prompt == (PromptToken(first), PromptToken("b", -0.5, (TokenChoice("b", -0.5),)))
    assert (answer.text, answer.completion_tokens, answer.tokens) == ("", 0, ())
    (refused,) = engine.generate([_request("1", tools=({"type": "function"},))])
    assert isinstance(refused, RequestRefusedError)
    assert refused.param == "tools"
    (refused,) = engine.embed([EmbeddingRequest("a", "x")])
    assert refused.code == "unsupported_model"


def test_one_model_is_resident_at_a_time(engine):
    engine.generate([_request("1")])
    engine.generate([GenerationRequest("b", (ChatMessage("user", "1"),), 3)])
    assert [path.rpartition("/")[2] for path in FakeLlm.made] == ["a", "b"]
    engine.unload("b")
    engine.generate([_request("1")])
    assert len(FakeLlm.made) == 3


def test_no_vllm_and_no_model_are_said(monkeypatch, engine, tmp_path):
    with pytest.raises(LanguageServiceError, match="has no config"):
        engine.load("c", tmp_path)
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ParameterError, match="needs vLLM and a GPU"):
        VllmEngine()
