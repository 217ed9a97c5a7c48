"""Whole training where each trained model is deployed before it plays, also where it breaks off."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ratchet.errors import RolloutError

sys.path.insert(0, str(Path(__file__).parents[2] / "language_models"))

from local_services import Answer, Request, chat_answer
from tuning_services import AzureService

KEY, TOKEN = "sk-azure-0123456789", "sk-token-0123456789"


class QuickAzure(AzureService):
    """Jobs succeed immediately; a verifier accepts any message."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def _create(self, request: Request) -> Answer:
        answer = super()._create(request)
        model = f"tiny-2025-04-14.ft-{len(self.jobs)}"
        self.jobs[-1].update(status="succeeded", fine_tuned_model=model, trained_tokens=10)
        return answer

    def _chat(self, name: str) -> Answer:
        answer = super()._chat(name)
        if answer.status != 200:
            return answer
        self.asked.append(name)
        return Answer(body=chat_answer("Decision: accept"))


@pytest.fixture
def service(monkeypatch):
    monkeypatch.setenv("AZURE_KEY", KEY)
    monkeypatch.setenv("AZURE_TOKEN", TOKEN)
    service = QuickAzure()
    yield service
    service.close()


@pytest.fixture
def train(service, tiny_text, tmp_path):
    verifier = {
        "use_dummy_api": False,
        "base_url": service.url,
        "api_version": "2025-01-01",
        "api_key_name": "AZURE_KEY",
        "model_name": "tiny",
        "fine_tuning_service": {
            "url": service.url,
            "api_key_name": "AZURE_TOKEN",
            "account": AzureService.ACCOUNT,
        },
    }

    def make():
        hyper_params = tiny_text.parameters(agents__prover__freeze_agent=True)
        hyper_params = hyper_params.replace({"agents.verifier": verifier})
        trainer = tiny_text.trainer(hyper_params, home=str(tmp_path), run_id="r")
        trainer.train()
        return trainer

    return make


@pytest.mark.slow
def test_each_model_plays_by_the_name_of_its_deployment(service, train, tmp_path):
    group = train().shared_model_groups["verifier"]
    names = [deployment["name"] for deployment in service.deployments]
    tuned = [item["properties"]["model"]["name"] for item in service.deployments]
    assert tuned == [job["fine_tuned_model"] for job in service.jobs]
    assert list(dict.fromkeys(service.asked)) == ["tiny", *names]
    assert group.state.called_as == names[-1]
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert not any(key.encode() in written for key in (KEY, TOKEN))


def test_taken_up_again_nothing_is_made_twice_and_what_is_gone_is_deployed_anew(
    service, train, monkeypatch
):
    """It fails after the first deployment, which is deleted before the resume."""
    plain, stop = service._chat, [True]

    def chat(name):
        if name != "tiny" and stop[0]:
            return Answer(404, {"error": {"message": "gone", "code": "DeploymentNotFound"}})
        return plain(name)

    monkeypatch.setattr(service, "_chat", chat)
    with pytest.raises(RolloutError, match="gone"):
        train()
    assert len(service.jobs) == len(service.deployments) == 1
    (first,) = service.deployments
    service.deployments.clear()
    stop[0] = False
    train()
    assert service.deployments[0]["name"] == first["name"]
    assert len({job["training_file"] for job in service.jobs}) == len(service.jobs)
    assert len(service.deployments) == len(service.jobs)
