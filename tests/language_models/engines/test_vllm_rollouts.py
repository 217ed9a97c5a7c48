"""Generation by vLLM with the trainer's weights, on a stub with its interface: there is no GPU."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ratchet.errors import MissingPackageError, ParameterError
from ratchet.language_models.engines.rollouts import SampleRequest, make_engine
from ratchet.language_models.local.loading import load_language_model
from ratchet.language_models.local.small_models import SmallModelShape, make_small_model
from ratchet.models.lora import Lora


class Vllm:
    """Generates from the weights that it has read."""

    made: list = []  # noqa: RUF012 -- one list for all

    def __init__(self, model, *, enable_sleep_mode, logprobs_mode, enable_lora=False, **options):
        assert enable_sleep_mode
        assert logprobs_mode == "processed_logprobs"
        self.folder, self.options, self.calls, self.loras = Path(model), options, [], {}
        self.llm_engine = SimpleNamespace(remove_lora=self.loras.pop)
        self.weights = _digest(self.folder / "model.safetensors")
        Vllm.made.append(self)

    def generate(self, prompts, sampling, *, use_tqdm, lora_request=None):
        by = self.weights
        if lora_request is not None:
            number = lora_request["number"]
            file = Path(lora_request["folder"]) / "adapter_model.safetensors"
            by = self.loras.setdefault(number, _digest(file))
        self.calls.append((by, [prompt["prompt_token_ids"] for prompt in prompts], sampling))
        choices = [{5: SimpleNamespace(logprob=-0.5)}, {1: SimpleNamespace(logprob=-0.25)}]
        answer = SimpleNamespace(token_ids=[5, 1], logprobs=choices, finish_reason="stop")
        return [SimpleNamespace(outputs=[answer]) for _ in prompts]

    def sleep(self, level):
        self.weights = None
        self.calls.append(("sleep", level))

    def wake_up(self, tags):
        self.calls.append(("wake_up", *tags))

    def collective_rpc(self, method):
        assert method == "reload_weights"
        self.weights = _digest(self.folder / "model.safetensors")


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.fixture
def vllm(monkeypatch):
    Vllm.made = []
    stand_in = SimpleNamespace(LLM=Vllm, SamplingParams=lambda **values: values)
    monkeypatch.setitem(sys.modules, "vllm", stand_in)
    lora = SimpleNamespace(
        LoRARequest=lambda name, number, folder: {"number": number, "folder": folder}
    )
    monkeypatch.setitem(sys.modules, "vllm.lora.request", lora)


@pytest.fixture
def folder(tmp_path):
    shape = SmallModelShape(d_model=16, layers=1, heads=2, context_length=16)
    make_small_model(tmp_path / "model", alphabet="ab", shape=shape)
    return tmp_path / "model"


REQUEST = SampleRequest((3, 4), 6, seed=9, temperature=0.7, stop_ids=(2,))


def test_answers_and_what_is_asked(vllm, folder):
    model = load_language_model(folder, base_dir=Path())
    engine = make_engine("vllm", model, {"gpu_memory_utilization": 0.4})
    (answer,) = engine.generate([REQUEST])
    assert (answer.tokens, answer.log_probs) == ((5, 1), (-0.5, -0.25))
    assert answer.finish_reason == "stop"
    (llm,) = Vllm.made
    assert llm.options == {"gpu_memory_utilization": 0.4}
    ((_, prompts, (sampling,)),) = llm.calls
    assert prompts == [[3, 4]]
    assert sampling == {
        "temperature": 0.7,
        "max_tokens": 6,
        "seed": 9,
        "stop_token_ids": [*model.end_ids, 2],
        "logprobs": 0,
        "detokenize": False,
    }
    assert engine.generate([]) == []
    with pytest.raises(ParameterError, match="top_p"):
        engine.generate([SampleRequest((3,), 1, seed=0, top_p=0.5)])


@pytest.mark.parametrize("rank", [0, 2])
def test_the_next_answers_have_the_next_weights(vllm, folder, rank):
    lora = Lora(rank) if rank else None
    model = load_language_model(folder, base_dir=Path(), lora=lora)
    engine = make_engine("vllm", model, {})
    engine.generate([REQUEST])
    engine.generate([REQUEST])
    weights = model.state_dict()
    model.load_state_dict({name: tensor + 1 for name, tensor in weights.items()})
    engine.update(model)
    engine.generate([REQUEST])
    (llm,) = Vllm.made
    by = [call[0] for call in llm.calls if len(call) == 3]
    assert by[0] == by[1] != by[2]
    slept = [call for call in llm.calls if call[0] in ("sleep", "wake_up")]
    whole = [("sleep", 2), ("wake_up", "weights"), ("wake_up", "kv_cache")]
    assert slept == ([] if rank else whole)
    if rank:
        assert llm.options == {"max_lora_rank": 8}
        assert len(llm.loras) == 1, "the adapter before is forgotten"


def test_no_vllm_is_said(folder):
    model = load_language_model(folder, base_dir=Path())
    if "vllm" in sys.modules:
        pytest.skip("vLLM is installed")
    with pytest.raises(MissingPackageError, match="needs vLLM"):
        make_engine("vllm", model, {})
    with pytest.raises(ParameterError, match="cannot be created with"):
        make_engine("in_process", model, {"speed": 3})
