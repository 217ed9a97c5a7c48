"""Generation by vLLM in a separate process, with a stand-in for vLLM."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ratchet.errors import (
    DataError,
    LanguageServiceError,
    MissingPackageError,
    ParameterError,
    WorkerDiedError,
)
from ratchet.language_models.engines import vllm_rollouts
from ratchet.language_models.engines.rollouts import SampleRequest, make_engine
from ratchet.language_models.local.loading import load_language_model
from ratchet.language_models.local.small_models import SmallModelShape, make_small_model
from ratchet.models.lora import Lora

STUB = Path(__file__).parent / "vllm_stub"
REQUEST = SampleRequest((3, 4), 6, seed=9)


@pytest.fixture
def python(tmp_path, monkeypatch):
    """An interpreter that finds the stand-in."""
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nshift\nPYTHONPATH={STUB} exec {sys.executable} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv(vllm_rollouts.PYTHON_VARIABLE, str(script))
    monkeypatch.setenv("STUB_CALLS", str(tmp_path / "calls"))
    monkeypatch.setattr(vllm_rollouts, "_LARGEST_DIFFERENCE", {})
    monkeypatch.setattr(vllm_rollouts, "_LARGEST_ROUNDED_DIFFERENCE", 100)
    return script


@pytest.fixture
def model(tmp_path):
    return load_language_model(make_folder(tmp_path), base_dir=Path())


def make_folder(path):
    shape = SmallModelShape(d_model=16, layers=1, heads=2, context_length=16)
    make_small_model(path / "model", alphabet="ab", shape=shape)
    return path / "model"


def calls(python):
    return (python.parent / "calls").read_text().splitlines()


def change(model, engine):
    weights = model.state_dict()
    model.load_state_dict({name: tensor + 1 for name, tensor in weights.items()})
    engine.update(model)


def test_the_users_options_take_precedence(python, model, monkeypatch):
    monkeypatch.setenv(vllm_rollouts.DEVICES_VARIABLE, "1")
    engine = make_engine("vllm", model, {"dtype": "float16", "max_num_seqs": 3})
    (completion,) = engine.generate([REQUEST])
    assert len(completion.tokens) == 6
    assert completion.log_probs == (-0.5,) * 6
    assert completion.finish_reason == "length"
    assert engine.generate([]) == []
    start = "start sleep=False dtype=float16 [('max_num_seqs', 3)]"
    assert calls(python) == [start, "devices 1", "reset_prefix_cache"]
    engine.close()


@pytest.mark.parametrize("sleeps", [False, True])
def test_the_next_completions_have_the_next_weights(python, model, monkeypatch, sleeps):
    if sleeps:
        monkeypatch.setenv("STUB_SLEEPS", "1")
    engine = make_engine("vllm", model, {})
    first, again = engine.generate([REQUEST]), engine.generate([REQUEST])
    change(model, engine)
    assert first == again != engine.generate([REQUEST])
    start = f"start sleep={sleeps} dtype=float32 []"
    update = ["sleep 2", "wake_up ['weights']", "wake_up ['kv_cache']"] if sleeps else []
    reset = "reset_prefix_cache"
    assert calls(python) == [start, reset, reset, *update, reset]
    engine.close()


@pytest.mark.slow
def test_of_an_adapted_model_only_the_adapter_is_passed(python, tmp_path):
    model = load_language_model(make_folder(tmp_path), base_dir=Path(), lora=Lora(2))
    engine = make_engine("vllm", model, {})
    first, again = engine.generate([REQUEST]), engine.generate([REQUEST])
    change(model, engine)
    assert first == again != engine.generate([REQUEST])
    lora = "[('enable_lora', True), ('max_lora_rank', 8)]"
    assert calls(python)[0] == f"start sleep=False dtype=float32 {lora}"
    engine.close()


@pytest.mark.parametrize("free", [0, 10**9])
def test_weights_are_in_memory_if_they_fit(python, model, monkeypatch, free):
    usage = SimpleNamespace(free=free)
    monkeypatch.setattr(vllm_rollouts.shutil, "disk_usage", lambda _: usage)
    home = Path(make_engine("vllm", model, {})._home.name)
    assert home.is_relative_to(vllm_rollouts._MEMORY) == bool(free)


def test_an_ended_process_is_named_with_its_last_lines_and_replaced(python, model):
    engine = make_engine("vllm", model, {})
    before = engine.generate([REQUEST])
    with pytest.raises(WorkerDiedError, match=r"(?s)ended with code 3.*the last line"):
        engine.generate([SampleRequest((8,), 1, seed=0)])
    assert engine.generate([REQUEST]) == before
    engine.close()


def test_a_process_killed_between_calls_is_named(python, model):
    engine = make_engine("vllm", model, {})
    before = engine.generate([REQUEST])
    process = engine._worker._process
    process.kill()
    process.wait()
    with pytest.raises(WorkerDiedError, match="ended by signal 9"):
        engine.generate([REQUEST])
    assert engine.generate([REQUEST]) == before
    engine.close()


def test_other_log_probabilities_than_the_trainers_are_refused(python, model, monkeypatch):
    monkeypatch.setattr(vllm_rollouts, "_LARGEST_ROUNDED_DIFFERENCE", 0.1)
    engine = make_engine("vllm", model, {})
    with pytest.raises(LanguageServiceError, match="differ from the trainer's"):
        engine.generate([REQUEST])


def test_mistakes_are_named(python, model, monkeypatch, tmp_path):
    engine = make_engine("vllm", model, {"speed": 3})
    with pytest.raises(ParameterError, match="unexpected argument 'speed'"):
        engine.generate([REQUEST])
    for wrong in ({"top_p": 0.5}, {"temperature": 0.001}):
        with pytest.raises(ParameterError, match=next(iter(wrong))):
            engine.generate([SampleRequest((3,), 1, seed=0, **wrong)])
    for prompt in ((3,) * 16, (99,)):
        with pytest.raises(DataError, match="prompt"):
            engine.generate([SampleRequest(prompt, 1, seed=0)])
    monkeypatch.setenv(vllm_rollouts.PYTHON_VARIABLE, sys.executable)
    with pytest.raises(MissingPackageError, match="No module named 'vllm'"):
        make_engine("vllm", model, {}).generate([REQUEST])
    monkeypatch.delenv(vllm_rollouts.PYTHON_VARIABLE)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MissingPackageError, match="make setup-vllm"):
        make_engine("vllm", model, {})
    with pytest.raises(ParameterError, match="cannot be created with"):
        make_engine("in_process", model, {"speed": 3})
