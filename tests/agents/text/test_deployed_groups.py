"""Groups whose trained models are deployed first: asked by that name, priced by their own."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
from tuning_services import AzureService

from ratchet.errors import FineTuneError, LanguageModelError, ParameterError
from ratchet.language_models.pricing import ModelPrice, PriceTable
from ratchet.language_models.usage import UsageMeter
from ratchet.parameters import ExperimentSettings
from ratchet.rollouts.nested_array_dict import NestedArrayDict
from ratchet.scenarios.pure_text.agents.group_state import PureTextSharedModelGroupState
from ratchet.scenarios.pure_text.agents.shared_model_group import PureTextSharedModelGroup
from ratchet.scenarios.pure_text.agents.whole_agent import CallContext
from trainers.text.jobs import await_jobs


def rollouts(count):
    """Rollouts of one step in which the prover speaks."""
    speaks = np.zeros((count, 1, 2), dtype=bool)
    speaks[..., 0] = True
    prompt = json.dumps([{"role": "user", "content": "q"}])
    said = {
        "raw_message": [[[f"a{row}", None]] for row in range(count)],
        "prompt": [[[prompt, None]] for _ in range(count)],
    }
    agents = {"active": speaks, "valid": speaks, **said}
    padding = np.zeros((count, 1), dtype=bool)
    return NestedArrayDict({"padding": padding, "agents": agents}, count)


@pytest.fixture
def service(monkeypatch):
    monkeypatch.setenv("AZURE_KEY", "sk-azure-0123456789")
    monkeypatch.setenv("AZURE_TOKEN", "sk-token-0123456789")
    service = AzureService()
    yield service
    service.close()


@pytest.fixture
def build(service, game, tmp_path):
    def make(**changes):
        parameters = game.parameters(
            _default={
                "base_url": service.url,
                "api_version": "2025-01-01",
                "api_key_name": "AZURE_KEY",
                "model_name": "tiny",
                "shared_model_group": "both",
                "fine_tuning_service": {
                    "url": service.url,
                    "api_key_name": "AZURE_TOKEN",
                    "account": AzureService.ACCOUNT,
                },
                **changes,
            }
        )
        settings = ExperimentSettings(home=str(tmp_path), poll_seconds=0.01, poll_seconds_max=0.02)
        agents = game.agents(parameters, settings)
        return PureTextSharedModelGroup(parameters, settings, "both", list(agents.values()))

    return make


def trained(service, group, model="tiny-2025-04-14.ft-abc"):
    """Let a job train a model, and end like the stage that waits for it."""
    group.create_supervised_fine_tune_job({"prover": rollouts(10)})
    service.jobs[-1].update(status="succeeded", fine_tuned_model=model, trained_tokens=500)
    asyncio.run(await_jobs({"both": group}, UsageMeter("await_fine_tune_jobs")))
    return group


def play(game, group):
    context = CallContext(None, None, "r0", 1)
    return asyncio.run(group.agents["verifier"].act(game.view(), context))


def test_a_trained_model_is_deployed_once_and_asked_by_that_name(service, build, game):
    group = trained(service, build())
    (deployment,) = service.deployments
    assert group.current_model_name == "tiny-2025-04-14.ft-abc"
    assert group.called_as == deployment["name"] != group.current_model_name
    assert play(game, group).valid
    restored = PureTextSharedModelGroupState.from_dict(group.state.to_dict())
    assert restored == group.state
    again = build()
    again.state = restored
    again.make_callable()
    assert play(game, again).valid
    assert len(service.deployments) == 1


def test_a_deployment_that_was_deleted_is_made_again_before_playing(service, build, game):
    group = trained(service, build())
    service.deployments.clear()
    with pytest.raises(LanguageModelError, match="does not exist"):
        play(game, group)
    group.make_callable()
    assert play(game, group).valid


def test_a_failed_deployment_leaves_the_model_and_the_job_for_the_next_time(service, build):
    group = build()
    service.ends_as = "Failed"
    with pytest.raises(FineTuneError, match=r"deploying .* failed.*trained model is stored"):
        trained(service, group)
    assert group.current_model_name == "tiny"
    service.ends_as = "Succeeded"
    again = build()
    again.create_supervised_fine_tune_job({"prover": rollouts(10)})
    asyncio.run(await_jobs({"both": again}, UsageMeter("await_fine_tune_jobs")))
    assert again.current_model_name == "tiny-2025-04-14.ft-abc"
    assert len(service.jobs) == 1


def test_training_on_starts_from_the_model_and_not_from_its_deployment(service, build):
    group = trained(service, build(fine_tune_from_scratch=False))
    group.create_supervised_fine_tune_job({"prover": rollouts(11)})
    assert service.jobs[-1]["model"] == "tiny-2025-04-14.ft-abc"


def test_a_deployed_model_has_the_tuned_price_of_its_base(service, build, monkeypatch):
    prices = PriceTable({"tiny": ModelPrice(1, 1)}, {"tiny": ModelPrice(2, 2)})
    monkeypatch.setattr(PriceTable, "load", classmethod(lambda _cls, _path=None: prices))
    group = trained(service, build())
    assert group.agents["prover"]._price == ModelPrice(2, 2)


def test_a_group_of_a_service_that_lacks_a_word_is_refused_before_anything_is_asked(build):
    with pytest.raises(ParameterError, match=r"agents\.prover\.fine_tuning: got learning_rate"):
        build(fine_tuning={"learning_rate": 0.1})
