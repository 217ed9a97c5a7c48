"""Options of jobs, the service's defaults, and names of the trained models."""

from __future__ import annotations

import json
import subprocess
import sys

import openai
import pytest
from micro_model import write_micro_model

from ratchet import lazy
from ratchet.errors import MissingPackageError, ParameterError
from ratchet.models.lora import Lora
from ratchet.service import serving
from ratchet.service.settings import ServiceSettings
from ratchet.service.training.plan import Plan

IMPORTS = """
import sys
import ratchet.service.serving
assert "torch" not in sys.modules
import ratchet.service.training.train
assert not {"peft", "transformers"} & set(sys.modules)
"""


@pytest.mark.parametrize("lora", [Lora(2, dropout=0.1), Lora(2)])
def test_a_missing_package_is_reported_at_start_up(tmp_path, monkeypatch, lora):
    base = write_micro_model(tmp_path / "m")
    if not lora.dropout:
        config = json.loads((base / "config.json").read_text())
        (base / "config.json").write_text(json.dumps(config | {"model_type": "qwen2"}))
    monkeypatch.setattr(lazy, "is_installed", lambda name: name != "peft")
    with pytest.raises(MissingPackageError, match=r"needs peft, .*ratchet-experiments\[finetune\]"):
        serving.require_peft(lora, base)


def test_plain_torch_trains_adapters_of_small_llamas(tmp_path, monkeypatch):
    monkeypatch.setattr(lazy, "is_installed", lambda _: False)
    serving.require_peft(Lora(2), write_micro_model(tmp_path / "m"))


@pytest.mark.slow
def test_a_service_starts_without_torch_and_trains_tiny_models_without_transformers():
    subprocess.run([sys.executable, "-c", IMPORTS], check=True, timeout=300)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"micro_batch_size": 0}, "expected 1 or more"),
        ({"supervised_weight": -1}, "expected 0 to 100"),
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


OTHER = {"micro_batch_size": 2, "supervised_weight": 0.0}


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


def test_models_of_services_with_other_defaults_have_other_names(
    make_service, tmp_path, upload, wait_for
):
    names = []
    for number, settings in enumerate(({}, {"lora": Lora(4)}, {"lora": Lora(4)}, OTHER)):
        home = tmp_path / str(number)
        with make_service(home, **settings).serving() as service:
            names.append(train(service, upload, wait_for).fine_tuned_model)
    assert len(set(names)) == 3
    assert names[1] == names[2]


@pytest.mark.parametrize(
    "values", [{"lora_rank": -1}, {"lora_rank": 1.5}, {"lora_alpha": 0}, {"lora_dropout": 1}]
)
def test_impossible_adapters_are_refused_by_name(make_service, upload, values):
    with make_service().serving() as service, service.client() as client:
        with pytest.raises(openai.BadRequestError) as caught:
            client.fine_tuning.jobs.create(
                model="ratchet-tiny", training_file=upload(client), method=supervised(**values)
            )
        assert caught.value.param == f"method.supervised.hyperparameters.{next(iter(values))}"
