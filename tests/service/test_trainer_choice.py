"""Selection of the trainer, options of jobs, and names of their models."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import openai
import pytest
from micro_model import write_micro_model

from ratchet.errors import ParameterError
from ratchet.models.llama_shape import LARGEST_PLAIN_MODEL
from ratchet.models.lora import Lora
from ratchet.service.jobs.trainer_choice import PLAIN_TRAINER, choose_trainer
from ratchet.service.settings import ServiceSettings
from ratchet.service.training.plan import Plan

TRL = "ratchet.service.training.trl.train"
IMPORTS = """
import sys
import ratchet.service.serving
assert "torch" not in sys.modules
import ratchet.service.training.train
assert not {"trl", "peft", "transformers", "datasets"} & set(sys.modules)
"""


def choose(home, base, **settings):
    return choose_trainer(ServiceSettings(home=home, **settings), base)


def test_auto_selects_plain_for_supported_models_and_trl_otherwise(tmp_path):
    base = write_micro_model(tmp_path / "m")
    assert choose(tmp_path, base) == PLAIN_TRAINER
    assert choose(tmp_path, base, lora=Lora(4)).module == TRL
    assert choose(tmp_path, base, trainer="trl").module == TRL
    with (base / "model.safetensors").open("r+b") as weights:
        weights.truncate(4 * LARGEST_PLAIN_MODEL + 1)
    assert choose(tmp_path, base).module == TRL
    assert choose(tmp_path, base, trainer="plain") == PLAIN_TRAINER
    other = write_micro_model(tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"model_type": "qwen2"}))
    assert choose(tmp_path, other).module == TRL


@pytest.mark.parametrize("settings", [{"trainer": "trl"}, {"lora": Lora(2)}])
def test_a_missing_package_is_reported_at_start_up(tmp_path, monkeypatch, settings):
    base = write_micro_model(tmp_path / "m")
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "trl" else found(name)
    )
    with pytest.raises(ParameterError, match=r"needs trl, .*ratchet-experiments\[finetune\]"):
        choose(tmp_path, base, **settings)
    assert choose(tmp_path, base) == PLAIN_TRAINER


@pytest.mark.slow
def test_a_service_starts_without_torch_and_trains_tiny_models_without_trl():
    subprocess.run([sys.executable, "-c", IMPORTS], check=True, timeout=300)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"trainer": "best"}, "expected one of auto, plain, trl"),
        ({"trainer": "plain", "lora": Lora(1)}, "trains all weights"),
    ],
)
def test_incompatible_settings_are_refused(tmp_path, settings, complaint):
    with pytest.raises(ParameterError, match=complaint):
        ServiceSettings(home=tmp_path, **settings)


@pytest.mark.parametrize(
    "figures", [{"rank": -1}, {"rank": 1, "alpha": 0}, {"dropout": 1.0}, {"dropout": -0.1}]
)
def test_impossible_adapters_are_refused(figures):
    with pytest.raises(ParameterError, match="lora_"):
        Lora(**figures)


def test_adapter_settings_round_trip():
    for lora in (Lora(), Lora(3), Lora(4, 7, 0.25)):
        assert Lora.of(lora.as_hyperparameters()) == lora
    assert Lora().as_used() == {}
    assert Lora(3).as_used() == {"lora_rank": 3, "lora_alpha": 6, "lora_dropout": 0.0}


@pytest.mark.parametrize(("method", "rate"), [("supervised", 1e-3), ("dpo", 3e-4)])
def test_default_learning_rate_scales_with_model_size_and_is_tenfold_with_lora(method, rate):
    whole = Plan.of(method, {"learning_rate_multiplier": 2.0})
    assert whole.learning_rate(10) == whole.learning_rate(100_000) == 2 * rate
    assert whole.learning_rate(10_000_000) == pytest.approx(2 * rate / 10)
    adapted = Plan.of(method, {"lora_rank": 8})
    assert adapted.learning_rate(100_000) == pytest.approx(10 * rate)


def supervised(**hyperparameters):
    return {"type": "supervised", "supervised": {"hyperparameters": hyperparameters}}


def train(service, upload, wait_for, **hyperparameters):
    with service.client() as client:
        job = client.fine_tuning.jobs.create(
            model="ratchet-tiny",
            training_file=upload(client),
            method=supervised(n_epochs=3, **hyperparameters),
            seed=5,
        )
        return wait_for(client, job.id)


def told(service, job):
    """The LoRA settings passed to the trainer."""
    folder = service.service.models.get(job.fine_tuned_model).folder
    values = json.loads((folder / "config.json").read_text())["hyperparameters"]
    return Lora.of(values)


def test_a_job_uses_the_services_adapter_settings_unless_it_overrides_them(
    make_service, upload, wait_for
):
    with make_service(lora=Lora(4, None, 0.1)).serving() as service:
        assert told(service, train(service, upload, wait_for)) == Lora(4, None, 0.1)
        assert told(service, train(service, upload, wait_for, lora_rank=0)).rank == 0
        asked = train(service, upload, wait_for, lora_rank=8, lora_alpha=3, lora_dropout="auto")
        assert told(service, asked) == Lora(8, 3, 0.1)


def test_models_of_other_trainers_have_other_names(make_service, tmp_path, upload, wait_for):
    names = []
    for number, lora in enumerate([None, Lora(), Lora(4), Lora(4)]):
        home = tmp_path / str(number)
        with make_service(home, **({} if lora is None else {"lora": lora})).serving() as service:
            names.append(train(service, upload, wait_for).fine_tuned_model)
    assert len(set(names)) == 3
    assert names[2] == names[3]


@pytest.mark.parametrize("name", ["lora_rank", "lora_alpha", "lora_dropout"])
def test_a_service_that_trains_all_weights_refuses_adapters(make_service, upload, name):
    value = 0.5 if name == "lora_dropout" else 2
    with make_service().serving() as service, service.client() as client:
        ask = {"model": "ratchet-tiny", "training_file": upload(client)}
        for options, place in (
            ({"method": supervised(**{name: value})}, "method.supervised.hyperparameters"),
            ({"hyperparameters": {name: value}}, "hyperparameters"),
        ):
            with pytest.raises(openai.BadRequestError, match="trains all weights") as caught:
                client.fine_tuning.jobs.create(**ask, **options)
            assert caught.value.param == f"{place}.{name}"
        said_nothing = supervised(**{name: "auto"})
        assert client.fine_tuning.jobs.create(**ask, method=said_nothing).status == "queued"


@pytest.mark.parametrize(
    "values", [{"lora_rank": -1}, {"lora_rank": 1.5}, {"lora_alpha": 0}, {"lora_dropout": 1}]
)
def test_impossible_adapters_are_refused_by_name(make_service, upload, values):
    with make_service(lora=Lora()).serving() as service, service.client() as client:
        with pytest.raises(openai.BadRequestError) as caught:
            client.fine_tuning.jobs.create(
                model="ratchet-tiny", training_file=upload(client), method=supervised(**values)
            )
        assert caught.value.param == f"method.supervised.hyperparameters.{next(iter(values))}"
