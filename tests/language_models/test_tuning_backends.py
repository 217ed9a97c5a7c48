"""Guarantees of every fine-tuning backend, against services that follow their documentation."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys

import pytest
from tuning_cases import CASES
from tuning_services import AzureService

from ratchet.errors import FineTuneError, FineTuneRefusedError, ParameterError
from ratchet.language_models.connection import StatusError
from ratchet.language_models.endpoints import Endpoint
from ratchet.language_models.fine_tune_jobs import FineTuneIntent
from ratchet.language_models.fine_tuning import FineTuneClient
from ratchet.language_models.fine_tuning_backends import BUILT_IN
from ratchet.language_models.fine_tuning_backends.base import DeploymentIntent
from ratchet.language_models.fine_tuning_backends.registry import (
    TUNING_BACKENDS,
    build_tuning_backend,
)
from ratchet.parameters.chat_agents import FineTuningServiceParameters
from ratchet.scenarios.pure_text.agents.examples import sha256_of

CONTENT = b'{"messages": []}\n' * 10
INTENT = FineTuneIntent("tiny", "supervised", sha256_of(CONTENT), {"n_epochs": 2}, suffix="prover")
KEYS = {"MODEL_KEY": "sk-model-0123456789", "OTHER_KEY": "sk-other-9876543210"}

IDEMPOTENT = {"fireworks", "vllm"}
"""Services that refuse a repeated request, or list the first immediately."""
DEPLOYING = [name for name, case in CASES.items() if case.deploys]
FATES = [["503 after"], ["429 before", "cut before", "503 before", "cut after"]]


@pytest.fixture(autouse=True)
def _keys(monkeypatch):
    for name, key in KEYS.items():
        monkeypatch.setenv(name, key)


@pytest.fixture(params=CASES, ids=lambda name: name.replace(" ", "-"))
def case(request):
    return CASES[request.param]


@pytest.fixture
def deploying_case(request):
    return CASES[request.param]


def opened(case, request):
    service = case.service()
    request.addfinalizer(service.close)
    return service


@pytest.fixture
def service(case, request):
    return opened(case, request)


@pytest.fixture
def deployer(deploying_case, request):
    return opened(deploying_case, request)


over_deployers = pytest.mark.parametrize(
    "deploying_case", DEPLOYING, indirect=True, ids=lambda name: name.replace(" ", "-")
)


def client_of(case, service, policy, folder=None, settle_seconds=0.1):
    parameters = FineTuningServiceParameters(backend=case.backend, **case.parameters(service))
    endpoint = case.endpoint(service)
    backend = build_tuning_backend(endpoint, parameters)
    return FineTuneClient(endpoint, folder, policy, settle_seconds, backend)


def ensure(client, intent=INTENT):
    return asyncio.run(client.ensure_job(intent, CONTENT))


def test_there_is_a_case_of_every_backend():
    assert (
        {case.backend for case in CASES.values()} == set(BUILT_IN) == set(TUNING_BACKENDS.names())
    )


def test_asked_again_the_same_job_is_found_among_others(case, service, quick):
    client = client_of(case, service, quick)
    others = [
        FineTuneIntent("tiny", "supervised", sha256_of(CONTENT), {"n_epochs": epochs})
        for epochs in (3, 4)
    ]

    async def several():
        return [await client.ensure_job(i, CONTENT) for i in (INTENT, *others, INTENT)]

    first, *_, again = asyncio.run(several())
    assert (first.id, first.status, first.attempt) == (again.id, "pending", 0)
    assert len(service.jobs) == len(service.files) == 3


@pytest.mark.parametrize("fates", FATES, ids=", ".join)
def test_one_job_whatever_is_answered(case, service, quick, tmp_path, fates):
    fates_of(service, "job").extend(fates)
    job = ensure(client_of(case, service, quick, tmp_path))
    assert len(service.jobs) == len(service.files) == 1
    assert ensure(client_of(case, service, quick, tmp_path)).id == job.id
    assert len(service.jobs) == 1


def test_a_lost_job_is_followed_by_the_next_attempt(case, service, quick):
    client = client_of(case, service, quick)
    for attempt, end in enumerate(("failed", "cancelled", "failed")):
        job = ensure(client)
        assert job.attempt == attempt
        assert ensure(client).id == job.id
        case.finish(service, attempt, end)
        assert asyncio.run(client.status(job.id)).status == end
    assert len(service.jobs) == 3
    assert len(service.files) == 1


def test_every_word_for_a_status_is_read(case, service, quick):
    client = client_of(case, service, quick)
    job = ensure(client)
    service.jobs[0].setdefault(case.model, None)
    service.jobs[0][case.model] = service.jobs[0][case.model] or "tuned"
    for word, ours in case.statuses.items():
        service.jobs[0][case.state] = word
        seen = asyncio.run(client.status(job.id))
        assert (word, seen.status) == (word, ours)
        assert (seen.fine_tuned_model is not None) >= (ours == "succeeded")
        service.jobs[0][case.state] = "a new word"
        assert asyncio.run(client.status(job.id)).status == "running"
    del service.jobs[0][case.state]
    answers = iter([None, next(iter(case.statuses))])
    plain = service.answer if not hasattr(service, "trainer") else service.trainer.answer

    def mend(request):
        service.jobs[0][case.state] = next(answers, next(iter(case.statuses)))
        return plain(request)

    target = service if not hasattr(service, "trainer") else service.trainer
    target.answer = mend
    assert asyncio.run(client.status(job.id)).status == "pending", "without a message: retried"


def test_a_refused_job_is_an_error_with_the_reason(case, service, quick, tmp_path):
    fates_of(service, "job").append("refused")
    with pytest.raises(FineTuneRefusedError, match=r"no such job|can't be fine-tuned"):
        ensure(client_of(case, service, quick, tmp_path))
    assert not service.jobs
    assert not list(tmp_path.glob("*.json"))


def test_waiting_and_cancelling(case, service, quick):
    client = client_of(case, service, quick)
    job = ensure(client)
    asyncio.run(client.cancel(job.id))
    assert asyncio.run(client.status(job.id)).status == "cancelled"
    case.finish(service, 0, "succeeded")
    done = asyncio.run(client.wait([job.id], 0.01))[job.id]
    assert (done.status, done.attempt) == ("succeeded", 0)
    assert done.fine_tuned_model
    if not case.deploys:
        assert asyncio.run(client.activate(done.fine_tuned_model)) == done.fine_tuned_model


def test_two_at_once_make_one_job_and_one_deployment(case, service, quick, tmp_path):
    clients = [client_of(case, service, quick, tmp_path) for _ in range(3)]

    async def all_at_once():
        jobs = await asyncio.gather(*(client.ensure_job(INTENT, CONTENT) for client in clients))
        names = await asyncio.gather(*(client.activate("tuned", 0.01) for client in clients))
        return {job.id for job in jobs}, set(names)

    jobs, names = asyncio.run(all_at_once())
    assert len(jobs) == len(names) == len(service.jobs) == 1
    assert len(getattr(service, "deployments", [0])) == 1


@over_deployers
@pytest.mark.parametrize("fates", FATES, ids=", ".join)
def test_one_deployment_whatever_is_answered(deploying_case, deployer, quick, tmp_path, fates):
    deployer.fates["deployment"].extend(fates)
    client = client_of(deploying_case, deployer, quick, tmp_path)
    called = asyncio.run(client.activate("tuned", 0.01))
    assert len(deployer.deployments) == 1
    again = client_of(deploying_case, deployer, quick, tmp_path)
    assert asyncio.run(again.activate("tuned", 0.01)) == called
    assert len(deployer.deployments) == 1
    asyncio.run(again.activate("another", 0.01))
    assert len(deployer.deployments) == 2


@pytest.mark.parametrize("deploying_case", ["azure", "together", "fireworks"], indirect=True)
def test_a_success_that_says_nothing_leaves_it_open(deploying_case, deployer, quick, tmp_path):
    deployer.fates["deployment"].append("html after")
    if deploying_case.backend != "azure":
        deployer.fates["job"].append("html after")
    client = client_of(deploying_case, deployer, quick, tmp_path)
    ensure(client)
    asyncio.run(client.activate("tuned", 0.01))
    assert len(deployer.jobs) == len(deployer.deployments) == 1


@pytest.mark.parametrize("deploying_case", ["together"], indirect=True)
def test_a_deployment_that_goes_while_it_is_made_is_an_error(deploying_case, deployer, quick):
    plain = deployer.route

    def forget(request):
        answer = plain(request)
        if request.method == "POST":
            deployer.deployments.clear()
        return answer

    deployer.route = forget
    with pytest.raises(FineTuneError, match="endpoint-0 of 'tuned' no longer exists"):
        asyncio.run(client_of(deploying_case, deployer, quick).activate("tuned", 0.01))


@over_deployers
def test_what_was_deployed_is_taken_back_and_deployed_anew(
    deploying_case, deployer, quick, tmp_path
):
    client = client_of(deploying_case, deployer, quick, tmp_path)
    for _ in range(2):
        asyncio.run(client.activate("tuned", 0.01))
        assert len(deployer.deployments) == 1
        asyncio.run(client.deactivate("tuned"))
        assert not deployer.deployments
    asyncio.run(client.activate("tuned", 0.01))
    deployer.deployments.clear()  # a service that was restarted, or idle for too long
    asyncio.run(client.activate("tuned", 0.01))
    assert len(deployer.deployments) == 1


@pytest.mark.parametrize(
    "deploying_case", [name for name in DEPLOYING if CASES[name].failing], indirect=True
)
def test_a_deployment_that_fails_is_an_error_and_the_next_is_another(
    deploying_case, deployer, quick, tmp_path
):
    client = client_of(deploying_case, deployer, quick, tmp_path)
    good = {name: getattr(deployer, name) for name in deploying_case.failing}
    for name, value in deploying_case.failing.items():
        setattr(deployer, name, value)
    with pytest.raises(FineTuneError, match=r"deploying 'tuned' failed.*run the same command"):
        asyncio.run(client.activate("tuned", 0.01))
    for name, value in good.items():
        setattr(deployer, name, value)
    asyncio.run(client.activate("tuned", 0.01))
    assert len(deployer.deployments) == 2, "the failed one is kept for inspection"


@over_deployers
def test_a_refused_deployment_says_why(deploying_case, deployer, quick, tmp_path):
    deployer.fates["deployment"].append("refused")
    client = client_of(deploying_case, deployer, quick, tmp_path)
    with pytest.raises(FineTuneRefusedError, match=r"deploying 'tuned' was refused.*no such depl"):
        asyncio.run(client.activate("tuned", 0.01))
    assert not list(tmp_path.glob("*.json"))


def test_keys_go_to_their_own_service_and_into_no_log(case, service, quick, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    fates_of(service, "job").extend(["503 after"])
    client = client_of(case, service, quick, tmp_path)
    ensure(client)
    asyncio.run(client.activate("tuned", 0.01))
    written = caplog.text + "".join(path.read_text() for path in tmp_path.glob("*.json"))
    assert not any(key in written for key in KEYS.values())
    if case.backend == "vllm":
        sent = {r.headers["authorization"] for r in service.requests}
        assert sent == {f"Bearer {KEYS['MODEL_KEY']}"}
        sent = {r.headers["authorization"] for r in service.trainer.requests}
        assert sent == {f"Bearer {KEYS['OTHER_KEY']}"}
    if case.backend == "azure":
        for request in service.requests:
            managed = request.path.startswith(AzureService.ACCOUNT)
            name, key = ("authorization", "OTHER_KEY") if managed else ("api-key", "MODEL_KEY")
            assert KEYS[key] in request.headers[name]
            other = KEYS["MODEL_KEY" if managed else "OTHER_KEY"]
            assert not any(other in value for value in request.headers.values())


def fates_of(service, kind):
    return service.fates[kind] if hasattr(service, "fates") else service.on_create


_MAKER = """
import asyncio, json, sys
from pathlib import Path
from ratchet.language_models.endpoints import Endpoint
from ratchet.language_models.fine_tune_jobs import FineTuneIntent
from ratchet.language_models.fine_tuning import FineTuneClient
from ratchet.language_models.fine_tuning_backends.registry import build_tuning_backend
from ratchet.parameters.chat_agents import FineTuningServiceParameters
url, version, service, folder, intent = json.loads(sys.argv[1])
endpoint = Endpoint(url, "MODEL_KEY", version)
backend = build_tuning_backend(endpoint, FineTuningServiceParameters(**service))
client = FineTuneClient(endpoint, Path(folder), backend=backend)
if intent is None:
    asyncio.run(client.activate("tuned"))
else:
    asyncio.run(client.ensure_job(FineTuneIntent.from_dict(intent), {content!r}))
"""


def kill_after_acceptance(case, service, folder, kind):
    """Have another process request it, and kill it when the service has accepted it."""
    fates_of(service, kind).append("stall after")
    asked = service.trainer if kind == "job" and hasattr(service, "trainer") else service
    parameters = {"backend": case.backend, **case.parameters(service)}
    intent = INTENT.to_dict() if kind == "job" else None
    given = [case.path(service), case.api_version, parameters, str(folder), intent]
    script = _MAKER.replace("{content!r}", repr(CONTENT))
    process = subprocess.Popen([sys.executable, "-c", script, json.dumps(given)])
    assert asked.accepted.wait(240)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.in_turn(1)
@pytest.mark.slow
@pytest.mark.parametrize("case", ["azure", "together", "fireworks", "vllm"], indirect=True)
def test_killed_between_acceptance_and_record_the_job_is_adopted(case, service, quick, tmp_path):
    """Lists lag behind the restart unless the service itself prevents a second job."""
    if case.backend not in IDEMPOTENT:
        service.lag = 2.0
    kill_after_acceptance(case, service, tmp_path, "job")
    job = ensure(client_of(case, service, quick, tmp_path, settle_seconds=20))
    assert job.status == "pending"
    assert len(service.jobs) == 1


@pytest.mark.in_turn(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    "deploying_case", ["azure", "together", "fireworks loading", "vllm"], indirect=True
)
def test_killed_while_it_deploys_the_deployment_is_adopted(
    deploying_case, deployer, quick, tmp_path
):
    if deploying_case.backend == "together":
        deployer.lag = 2.0
    kill_after_acceptance(deploying_case, deployer, tmp_path, "deployment")
    client = client_of(deploying_case, deployer, quick, tmp_path, settle_seconds=20)
    asyncio.run(client.activate("tuned", 0.01))
    assert len(deployer.deployments) == 1


def test_a_method_that_the_service_calls_otherwise_arrives(quick, request):
    """The request to each service, in its format, for one and the same intent."""
    content = b'{"messages": []}\n'
    supervised = FineTuneIntent(
        "tiny", "supervised", sha256_of(content), {"n_epochs": 2, "lora_rank": 8}, "prover", 3
    )
    preference = FineTuneIntent("tiny", "dpo", sha256_of(content), {"n_epochs": 1})
    sent = {}
    for name in ("together", "fireworks"):
        service = opened(CASES[name], request)
        client = client_of(CASES[name], service, quick)
        for intent in (supervised, preference):
            asyncio.run(client.ensure_job(intent, content))
        sent[name] = service.jobs
    first, second = sent["together"]
    assert first["training_method"] == {"method": "sft", "train_on_inputs": False}
    assert first["training_type"] == {"type": "Lora", "lora_r": 8, "lora_alpha": 16}
    assert (first["n_epochs"], first["suffix"]) == (2, "prover")
    assert second["training_method"] == {"method": "dpo"}
    first, second = sent["fireworks"]
    assert (first["baseModel"], first["epochs"], first["loraRank"]) == ("tiny", 2, 8)
    assert first["outputModel"].startswith("accounts/acct/models/ratchet-")
    assert second["trainingConfig"]["baseModel"] == "tiny"
    assert "dpoJobs" in second["name"]


def test_training_goes_on_from_a_model_in_the_services_words(quick, request):
    """Together receives it as the checkpoint of a job, Fireworks as a warm start."""
    for name in ("together", "fireworks"):
        case = CASES[name]
        service = opened(case, request)
        client = client_of(case, service, quick)
        first = ensure(client)
        case.finish(service, 0, "succeeded")
        model = asyncio.run(client.status(first.id)).fine_tuned_model
        ensure(client, FineTuneIntent(model, "supervised", sha256_of(CONTENT)))
        going_on = service.jobs[1]
        if name == "together":
            assert (going_on["model"], going_on["from_checkpoint"]) == ("tiny", "ft-0")
        else:
            assert going_on["warmStartFrom"] == model
            assert "baseModel" not in going_on


def test_where_nothing_is_deployed_models_of_together_are_called_serverless(quick, request):
    service = opened(CASES["together"], request)
    endpoint = Endpoint(service.url, "MODEL_KEY")
    backend = build_tuning_backend(endpoint, FineTuningServiceParameters(backend="together"))
    client = FineTuneClient(endpoint, policy=quick, backend=backend)
    assert asyncio.run(client.activate("me/tiny-0")) == "me/tiny-0"
    assert not service.requests


def test_vllm_loads_any_folder_and_is_told_where_adapters_lie(quick, request):
    service = opened(CASES["vllm"], request)
    backend = client_of(CASES["vllm"], service, quick).backend
    asyncio.run(backend.deploy(DeploymentIntent("ft:tiny:a:1"), 0))
    asyncio.run(backend.load("mine", "/adapters/mine"))
    places = {item["id"]: item["root"] for item in service.deployments}
    assert places == {
        "ft:tiny:a:1": "/llm/models/of-ft:tiny:a:1",
        "mine": "/adapters/mine",
    }
    (found,) = asyncio.run(backend.find_deployments(DeploymentIntent("mine")))
    asyncio.run(backend.undeploy(found))
    assert next(iter(places)) == service.deployments[0]["id"]
    elsewhere = FineTuningServiceParameters(
        backend="vllm", url=service.trainer.url, adapter_path="/mnt/{folder}"
    )
    mounted = build_tuning_backend(CASES["vllm"].endpoint(service), elsewhere)
    asyncio.run(mounted.deploy(DeploymentIntent("ft:tiny:a:2"), 0))
    assert service.deployments[-1]["root"] == "/mnt/of-ft:tiny:a:2"
    with pytest.raises(StatusError, match=r"rank 12 .*a larger --max-lora-rank"):
        asyncio.run(backend.load("deep", "/adapters/long chain"))


@pytest.mark.parametrize("name", ["azure", "fireworks"])
def test_what_a_deployment_needs_is_missed_before_a_job_is_made(name, quick, request):
    service = opened(CASES[name], request)
    backend = build_tuning_backend(
        CASES[name].endpoint(service), FineTuningServiceParameters(backend=name)
    )
    with pytest.raises(ParameterError, match=r"fine_tuning_service\.account.*such as"):
        ensure(FineTuneClient(CASES[name].endpoint(service), policy=quick, backend=backend))
    assert not service.requests
