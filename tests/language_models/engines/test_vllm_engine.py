"""The vLLM engine's calls, against a stub; the real vLLM needs a GPU.

The stub accepts only what vLLM's documentation describes: ``LLM(model, enable_lora, max_loras,
max_lora_rank, enable_sleep_mode)``, ``generate`` with a ``lora_request`` for each prompt,
``LoRARequest(name, number, path)`` of an adapter in PEFT's layout, ``sleep(level)``,
``wake_up(tags)`` and ``collective_rpc("reload_weights")``. A refused request fails the complete
call.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from micro_model import write_adapter, write_micro_model
from safetensors.torch import load_file

from ratchet.errors import LanguageServiceError, MissingPackageError
from ratchet.language_models.engines.interface import (
    EmbeddingRequest,
    GenerationRequest,
    PromptToken,
    RequestRefusedError,
    TokenChoice,
)
from ratchet.language_models.engines.vllm_engine import VllmEngine
from ratchet.language_models.types import ChatMessage
from ratchet.models.low_rank import LowRankChange

_CHOICES = {
    11: SimpleNamespace(logprob=-2.0, decoded_token="a"),
    12: SimpleNamespace(logprob=-0.5, decoded_token="b"),
}


class _End(dict):
    """Token choices at the end of a completion, for any end token."""

    def __missing__(self, token):
        return SimpleNamespace(logprob=-0.1, decoded_token="<|end|>")


_END = _End()


@dataclass(frozen=True)
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str


class FakeLlm:
    made: list = []  # noqa: RUF012 -- one list for all
    end = None  # the token that ends a completion

    def __init__(
        self, model, enable_lora=False, max_loras=1, max_lora_rank=16, enable_sleep_mode=False
    ):
        assert max_lora_rank in (1, 8, 16, 32, 64, 128, 256, 320, 512)
        self.model, self.room = Path(model), max_lora_rank if enable_lora else 0
        self.max_loras, self.can_sleep = max_loras, enable_sleep_mode
        self.calls = []
        self.loras = {}
        FakeLlm.made.append(self)
        self.llm_engine = SimpleNamespace(
            model_config=SimpleNamespace(max_model_len=10), remove_lora=self._remove
        )

    def generate(self, prompts, sampling_params, *, use_tqdm=True, lora_request=None):
        assert self.calls[-1:] in (
            [],
            [("generate",)],
            [("wake_up", None)],
            [("wake_up", "kv_cache")],
        )
        adapters = lora_request or [None] * len(prompts)
        for prompt, lora in zip(prompts, adapters, strict=True):
            if 13 in prompt["prompt_token_ids"]:
                raise ValueError("13 is refused")
            if lora is not None:
                self._load(lora)
        self.calls.append(("generate",))
        together = zip(prompts, sampling_params, adapters, strict=True)
        return [
            SimpleNamespace(
                prompt_token_ids=prompt["prompt_token_ids"],
                prompt_logprobs=[None, *(_CHOICES for _ in prompt["prompt_token_ids"][1:])],
                outputs=[self._answer(sampling, lora)],
            )
            for prompt, sampling, lora in together
        ]

    def _load(self, lora):
        """Find the adapter of a number, or read it once."""
        if lora.lora_int_id not in self.loras:
            config = json.loads((Path(lora.lora_path) / "adapter_config.json").read_text())
            assert config["r"] <= self.room
            file = Path(lora.lora_path) / "adapter_model.safetensors"
            self.loras[lora.lora_int_id] = hashlib.sha256(file.read_bytes()).hexdigest()[:4]

    def _answer(self, sampling, lora):
        by = self.model.name if lora is None else self.loras[lora.lora_int_id]
        stop = sampling["stop"]
        ended = FakeLlm.end in sampling["stop_token_ids"]
        return SimpleNamespace(
            text="a" if stop else f"{sampling['seed']} {by}",
            finish_reason="length" if sampling["max_tokens"] == 1 else "stop",
            stop_reason=stop[0] if stop else FakeLlm.end if ended else None,
            token_ids=[11, 11, 11] if stop else [11, FakeLlm.end] if ended else [11],
            logprobs=None
            if sampling["logprobs"] is None
            else [_CHOICES] * (3 if stop else 1) + [_END] * ended,
        )

    def sleep(self, level=1):
        assert self.can_sleep
        self.calls.append(("sleep", level))

    def wake_up(self, tags=None):
        for tag in tags or [None]:
            self.calls.append(("wake_up", tag))

    def collective_rpc(self, method):
        self.calls.append((method,))

    def _remove(self, number):
        return self.loras.pop(number, None) is not None


@pytest.fixture
def vllm(monkeypatch):
    FakeLlm.made, FakeLlm.end = [], None
    stand_in = SimpleNamespace(LLM=FakeLlm, SamplingParams=lambda **values: values)
    monkeypatch.setitem(sys.modules, "vllm", stand_in)
    lora = SimpleNamespace(LoRARequest=LoRARequest)
    monkeypatch.setitem(sys.modules, "vllm.lora.request", lora)
    return stand_in


@pytest.fixture
def engine(vllm, tmp_path):
    engine = VllmEngine()
    for name in ("a", "b"):
        folder = write_micro_model(tmp_path / name)
        (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
        engine.load(name, folder)
    return engine


def _request(content, **options):
    return GenerationRequest("a", (ChatMessage("user", content),), 3, **options)


def test_responses_are_in_the_order_of_requests(engine):
    answers = engine.generate([_request("1234"), _request("x" * 10), _request("1", max_tokens=1)])
    told = (answers[0].text, answers[0].prompt_tokens, answers[0].finish_reason)
    assert told == ("3 a", 4, "stop")
    assert isinstance(answers[1], RequestRefusedError)
    assert answers[1].code == "context_length_exceeded"
    assert answers[2].finish_reason == "length"


def test_sampling_parameters_are_passed_on(engine):
    sampling = engine._sampling(_request("1", top_p=0.5, repetition_penalty=1.5), 10, [7])
    assert (sampling["top_p"], sampling["repetition_penalty"]) == (0.5, 1.5)


def test_messages_are_text_and_invalid_ones_fail_only_their_request(engine, monkeypatch):
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


def test_log_probabilities_of_sampled_and_most_likely_tokens(engine):
    (answer,) = engine.generate([_request("1", logprobs=True, top_logprobs=1)])
    assert [(token.token, token.logprob) for token in answer.tokens] == [("a", -2.0)]
    assert answer.tokens[0].top == (TokenChoice("b", -0.5),)


def test_schemas_echoes_and_tools_are_passed_in_vllms_format(engine, monkeypatch):
    passed = []
    params = SimpleNamespace(StructuredOutputsParams=lambda json: ("json", json))
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", params)
    vllm = sys.modules["vllm"]
    monkeypatch.setattr(vllm, "SamplingParams", lambda **v: passed.append(v) or v)
    engine.generate([_request("1", schema="{}"), _request("1")])
    assert passed[0]["structured_outputs"] == ("json", "{}")
    assert "structured_outputs" not in passed[1]
    scored = GenerationRequest(
        "a", (), 3, prompt=(5, 12), echo=True, logprobs=True, top_logprobs=1, max_tokens=0
    )
    (answer,) = engine.generate([scored])
    assert (passed[2]["prompt_logprobs"], passed[2]["max_tokens"]) == (1, 1)
    first = engine._known["a"].tokenizer.token_text(5)
    assert answer.prompt == (PromptToken(first), PromptToken("b", -0.5, (TokenChoice("b", -0.5),)))
    assert (answer.text, answer.completion_tokens, answer.tokens) == ("", 0, ())
    (refused,) = engine.generate([_request("1", tools=({"type": "function"},))])
    assert isinstance(refused, RequestRefusedError)
    assert refused.param == "tools"
    (refused,) = engine.embed([EmbeddingRequest("a", "x")])
    assert refused.code == "unsupported_model"


@pytest.mark.slow
def test_one_model_is_resident_at_a_time(engine):
    engine.generate([_request("1")])
    engine.generate([GenerationRequest("b", (ChatMessage("user", "1"),), 3)])
    assert [llm.model.name for llm in FakeLlm.made] == ["a", "b"]
    engine.unload("b")
    engine.generate([_request("1")])
    assert len(FakeLlm.made) == 3


def test_missing_vllm_and_missing_models_are_reported(monkeypatch, engine, tmp_path):
    with pytest.raises(LanguageServiceError, match=r"config\.json is missing"):
        engine.load("c", tmp_path)
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(MissingPackageError, match="needs vLLM and a GPU"):
        VllmEngine()


def _ask(model, content="1", **options):
    return GenerationRequest(model, (ChatMessage("user", content),), 3, **options)


@pytest.fixture
def family(vllm, tmp_path):
    """Folders of a base model, two adapters to it, and one to the first of these."""
    base = write_micro_model(tmp_path / "base")
    (base / "chat_template.jinja").write_text("{{ messages[0].content }}")
    for seed, name in enumerate(("x", "y", "z")):
        write_adapter(tmp_path / name, base, name, seed=seed)
    return SimpleNamespace(base=base, x=tmp_path / "x", y=tmp_path / "y", z=tmp_path / "z")


@pytest.mark.slow
def test_several_adapters_to_one_base_share_a_batch(family):
    engine = VllmEngine(max_loras=3)
    engine.load("base", family.base)
    engine.load("x", family.base, [family.x])
    engine.load("y", family.base, [family.y])
    names = ["x", "base", "y", "x"]
    answers = engine.generate([_ask(name) for name in names])
    texts = [answer.text for answer in answers]
    assert texts[0] == texts[3]
    assert texts[1] == "3 base"
    assert len(set(texts)) == 3
    assert [llm.room for llm in FakeLlm.made] == [0, 8]  # only with the first adapter
    llm = FakeLlm.made[-1]
    assert (llm.max_loras, llm.calls) == (3, [("generate",)])
    assert [engine.generate([_ask(name)])[0].text for name in names] == texts
    engine.unload("x")
    engine.load("x", family.base, [family.z])  # another model of that name
    assert engine.generate([_ask("x")])[0].text != texts[0]
    engine.unload("base")  # its adapters remain
    assert engine.generate([_ask("y")])[0].text == texts[2]
    assert len(FakeLlm.made) == 2


@pytest.mark.slow
def test_a_chain_of_adapters_is_combined_into_one_for_vllm(family):
    engine = VllmEngine()
    engine.load("xz", family.base, [family.x, family.z])
    composed = engine._known["xz"].adapter
    assert engine.generate([_ask("xz")])[0].text.startswith("3 ")
    weights = load_file(family.base / "model.safetensors")
    one_by_one = {name: tensor.clone() for name, tensor in weights.items()}
    for adapter in (family.x, family.z):
        LowRankChange(adapter).merge_into(one_by_one)
    LowRankChange(composed).merge_into(weights)
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, one_by_one[name], rtol=1e-5, atol=1e-6)
    engine.unload("xz")
    assert not composed.exists()
    with pytest.raises(LanguageServiceError, match="ratchet llm export"):
        engine.load("deep", family.base, [family.x] * 257)


@pytest.mark.slow
def test_one_bad_request_does_not_fail_its_batch(family, vllm, monkeypatch):
    engine = VllmEngine()
    engine.load("base", family.base)
    engine.load("x", family.base, [family.x])

    def sampling(**values):
        if values["top_p"] == 0.25:
            raise ValueError("top_p is refused")
        return values

    monkeypatch.setattr(vllm, "SamplingParams", sampling)
    bad = GenerationRequest("x", (), 3, prompt=(5, 13))
    answers = engine.generate([_ask("x"), bad, _ask("base"), _ask("base", top_p=0.25)])
    assert [getattr(answer, "text", None) for answer in answers][2] == "3 base"
    assert answers[0].text == engine.generate([_ask("x")])[0].text
    expected = ((answers[1], "13 is refused", "prompt"), (answers[3], "top_p is", "messages"))
    for answer, why, param in expected:
        assert isinstance(answer, RequestRefusedError)
        assert why in str(answer)
        assert answer.param == param


def test_tokens_end_where_the_text_ends(engine):
    FakeLlm.end = engine._known["a"].tokenizer.end_ids[0]
    (answer,) = engine.generate([_request("1", logprobs=True)])
    assert [token.token for token in answer.tokens] == ["a"]
    assert (answer.finish_reason, answer.completion_tokens) == ("stop", 2)
    FakeLlm.end = None
    (answer,) = engine.generate([_request("1", logprobs=True, stop=("aa",))])
    assert (answer.text, [token.token for token in answer.tokens]) == ("a", ["a"])


@pytest.mark.parametrize(
    ("level", "calls"),
    [
        (0, []),
        (1, [("sleep", 1), ("wake_up", None)]),
        (
            2,
            [
                ("sleep", 2),
                ("wake_up", "weights"),
                ("reload_weights",),
                ("wake_up", "kv_cache"),
            ],
        ),
    ],
)
def test_memory_is_released_and_restored(family, level, calls):
    engine = VllmEngine(sleep_level=level)
    engine.load("x", family.base, [family.x])
    before = engine.generate([_ask("x")])
    (llm,) = FakeLlm.made
    assert llm.can_sleep == (level > 0)
    assert engine.sleeps == (level > 0)
    if engine.sleeps:
        engine.sleep()
        engine.wake_up()
    assert llm.calls == [("generate",), *calls]
    assert bool(llm.loras) == (level < 2)  # after level 2 adapters are read again
    assert engine.generate([_ask("x")]) == before
    assert len(FakeLlm.made) == 1
