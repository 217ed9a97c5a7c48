"""Services are started once, when first needed, and released at the end."""

from __future__ import annotations

import os

import pytest

from flows.process.progress import PlainLines
from flows.runs import language_services
from flows.runs.language_services import LanguageServices
from ratchet.errors import MissingKeyError, ParameterError
from ratchet.language_models.endpoints import EMBEDDED_URL_VARIABLE
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.settings import ExperimentSettings
from ratchet.service import launch
from trainers.progress import progress_path, progress_reporter


class FakeService:
    """Stand-in for the service's process."""

    log: list = []  # noqa: RUF012 -- events in order
    url = "http://127.0.0.1:1/v1"

    @classmethod
    def start(cls, home, on_wait):
        cls.log.append("start")
        on_wait("Making the base model")
        return cls()

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.log.append("stop")


@pytest.fixture(autouse=True)
def _fake_service(monkeypatch):
    FakeService.log.clear()
    monkeypatch.setattr(launch, "EmbeddedService", FakeService)
    monkeypatch.delenv(EMBEDDED_URL_VARIABLE, raising=False)


def services(tmp_path, settings=None, **agent):
    hyper_params = HyperParameters(
        scenario="code_validation",
        trainer="pure_text_ei",
        dataset="generated",
        agents={"_default": agent},
    )
    chosen = ExperimentSettings(home=str(tmp_path), **(settings or {}))
    return LanguageServices(chosen, {"main": hyper_params})


def test_a_budget_for_models_without_a_price_is_refused(tmp_path):
    own = {"base_url": "http://localhost:1/v1", "model_name": "my-model"}
    services(tmp_path, **own).check_prices()  # without a budget, no prices are required
    with pytest.raises(ParameterError, match=r"budget: got 5, but there is no price for my-model"):
        services(tmp_path, {"budget": 5}, **own).check_prices()
    prices = tmp_path / "prices.yaml"
    prices.write_text("models:\n  my-model: {input: 0, output: 0, training: 0}\n")
    services(tmp_path, {"budget": 5, "prices": str(prices)}, **own).check_prices()
    services(tmp_path, {"budget": 5}, base_url="embedded").check_prices()
    services(tmp_path, {"budget": 5}, **own, use_dummy_api=True).check_prices()


def test_the_embedded_service_runs_from_the_first_need_to_the_end(tmp_path):
    found, told = services(tmp_path, base_url="embedded"), PlainLines(write=print)
    assert FakeService.log == []
    with progress_reporter(told), progress_path("seed_2"):
        found.make_ready()
        found.make_ready()
    assert told.description == "seed_2 · Making the base model"
    assert os.environ[EMBEDDED_URL_VARIABLE] == FakeService.url
    found.close()
    assert FakeService.log == ["start", "stop"]
    assert os.environ[EMBEDDED_URL_VARIABLE] == ""


@pytest.mark.parametrize(
    "agent", [{"use_dummy_api": True}, {"base_url": None}, {"base_url": "http://127.0.0.1:9/v1"}]
)
def test_no_embedded_service_is_started_unless_needed(tmp_path, agent):
    found = services(tmp_path, **agent)
    found.make_ready()
    found.close()
    assert FakeService.log == []


def test_a_configured_service_is_used_and_not_stopped(tmp_path, monkeypatch):
    monkeypatch.setenv(EMBEDDED_URL_VARIABLE, "http://127.0.0.1:2/v1")
    found = services(tmp_path, base_url="embedded")
    found.make_ready()
    found.close()
    assert FakeService.log == []
    assert os.environ[EMBEDDED_URL_VARIABLE] == "http://127.0.0.1:2/v1"


class FakeSecret:
    """Stand-in for Prefect's secret blocks."""

    @classmethod
    async def aload(cls, name):
        if name != "my-key":
            raise ValueError(f"no block {name}")
        return cls()

    def get(self):
        return "sk-secret-value"


def test_a_key_is_read_from_a_secret_block_and_never_written(tmp_path, monkeypatch, caplog):
    import prefect.blocks.system

    from ratchet.language_models.endpoints import Endpoint

    monkeypatch.setattr(prefect.blocks.system, "Secret", FakeSecret)
    name = "prefect-secret:my-key"
    monkeypatch.setenv(name, "")  # restored afterwards
    monkeypatch.delenv(name)
    found = services(tmp_path, base_url="http://127.0.0.1:9/v1", api_key_name=name)
    found.make_ready()
    assert Endpoint("http://127.0.0.1:9/v1", name).api_key() == "sk-secret-value"
    assert "sk-secret-value" not in caplog.text + repr(vars(found))
    with pytest.raises(MissingKeyError, match="no secret block 'other'"):
        language_services.find_key("prefect-secret:other")


@pytest.mark.parametrize(
    ("service", "started"),
    [
        ({"backend": "ratchet"}, True),
        ({"backend": "ratchet", "url": "http://h:1"}, False),
        ({}, False),
    ],
)
def test_training_at_the_embedded_service_starts_it(tmp_path, service, started):
    trained = HyperParameters(
        scenario="language_task",
        trainer="remote_grpo" if service else "grpo",
        dataset="reverse",
        language={"train_service": service},
    )
    found = LanguageServices(ExperimentSettings(home=str(tmp_path)), {"main": trained})
    found.make_ready()
    found.close()
    assert FakeService.log == (["start", "stop"] if started else [])
