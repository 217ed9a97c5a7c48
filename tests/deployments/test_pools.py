"""Jobs that Prefect's workers create from the shipped templates, and the manifests."""

from __future__ import annotations

import asyncio
import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml

from deployments import deploy as deploy_module
from deployments.deploy import deploy
from deployments.local_stack import LocalStackError

DEPLOYMENTS = Path(__file__).parents[2] / "deployments"
KUBERNETES = DEPLOYMENTS / "kubernetes"
_KINDS: dict[str, type | tuple[type, ...]] = {
    "str": str,
    "int": int,
    "bool": bool,
    "object": object,
    "IntOrString": (int, str),
}


def faults(value: Any, kind: str, path: str = "") -> list[str]:
    """List violations of the definitions in Kubernetes' client, as a server would.

    Checks for unknown keys, missing required keys, and values of the wrong type.
    """
    if kind.startswith("list["):
        parts = enumerate(value) if isinstance(value, list) else ()
        wrong = [] if isinstance(value, list) else [f"{path}: expected a list"]
        return wrong + [f for i, v in parts for f in faults(v, kind[5:-1], f"{path}[{i}]")]
    if found := re.fullmatch(r"dict[(\[]str, (.+)[)\]]", kind):
        if not isinstance(value, dict):
            return [f"{path}: expected a mapping"]
        return [f for k, v in value.items() for f in faults(v, found[1], f"{path}.{k}")]
    if kind == "str" and ".resources." in path:  # a quantity may be a number
        return [] if isinstance(value, (str, int)) else [f"{path}: expected a quantity"]
    if kind in _KINDS:
        is_right = isinstance(value, _KINDS[kind]) and (kind == "bool") >= isinstance(value, bool)
        return [] if is_right or kind == "object" else [f"{path}: expected {kind}, got {value!r}"]
    if not isinstance(value, dict):
        return [f"{path}: expected {kind}, got {value!r}"]
    from kubernetes_asyncio import client

    model = getattr(client, kind)
    names = {key: name for name, key in model.attribute_map.items()}
    wrong = [f"{path}.{key}: no key of {kind}" for key in value if key not in names]
    try:
        model(**{name: value.get(key) for key, name in names.items()})
    except ValueError as error:
        wrong.append(f"{path}: {error}")
    for key, name in names.items():
        if value.get(key) is not None:
            wrong += faults(value[key], model.openapi_types[name], f"{path}.{key}")
    return wrong


def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((KUBERNETES / "lab.yaml").read_text()))


def configured(pool_type: str, **values: Any) -> dict[str, Any]:
    """Create a job configuration as Prefect's worker does before it starts a deployment's run."""
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.objects import FlowRun

    worker = import_module(f"prefect_{pool_type}.worker")  # takes seconds: not during collection
    configuration = getattr(worker, f"{pool_type.title()}WorkerJobConfiguration")
    shipped = yaml.safe_load((DEPLOYMENTS / "prefect.yaml").read_text())["definitions"]["pool"]
    template = json.loads((DEPLOYMENTS / pool_type / "base_job_template.json").read_text())
    nobody = PrefectClient("http://127.0.0.1:9/api")  # no request is sent
    job = asyncio.run(
        configuration.from_template_and_values(
            template, {**shipped["job_variables"], **values}, client=nobody
        )
    )
    job.prepare_for_flow_run(FlowRun(flow_id=UUID(int=1), name="a run"))
    return dict(job.model_dump())


def test_manifests_follow_the_kubernetes_definitions() -> None:
    for manifest in manifests():
        assert faults(manifest, f"V1{manifest['kind']}") == [], manifest["kind"]
    (wrong,) = (m for m in manifests() if m["kind"] == "Deployment")
    del wrong["spec"]["selector"]
    wrong["spec"]["replicas"] = "1"
    wrong["spec"]["template"]["spec"]["containers"][0]["comand"] = []
    assert [fault.partition(":")[0] for fault in faults(wrong, "V1Deployment")] == [
        *(".spec", ".spec.replicas", ".spec.template.spec.containers[0].comand")
    ]


def pods() -> list[tuple[str, dict[str, Any]]]:
    job = configured("kubernetes")["job_manifest"]
    found = {"job": job} | {m["kind"]: m for m in manifests() if "template" in m.get("spec", {})}
    return [(name, manifest["spec"]["template"]["spec"]) for name, manifest in found.items()]


def test_pods_meet_the_restricted_standard_and_contain_no_plain_secrets() -> None:
    (namespace,) = (m for m in manifests() if m["kind"] == "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for name, pod in pods():
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert container["envFrom"][0]["secretRef"]["name"]
            assert not re.search(r"PASSWORD|AUTH_STRING|SECRET", str(container["env"]))
            assert {"requests", "limits"} <= set(container["resources"])


def test_prefects_worker_creates_a_job_from_the_template() -> None:
    job = configured("kubernetes")["job_manifest"]
    assert faults(job, "V1Job") == []
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    variables = {one["name"]: one["value"] for one in container["env"]}
    assert variables["PREFECT_HOME"] == "/tmp/prefect"  # the pool's
    assert variables["PYTHONSAFEPATH"] == "1"  # and the deployment's
    assert container["args"]
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert set(mounted) == {volume["name"] for volume in pod["volumes"]}
    claims = {m["metadata"]["name"] for m in manifests() if m["kind"] == "PersistentVolumeClaim"}
    kept = [v["persistentVolumeClaim"] for v in pod["volumes"] if "persistentVolumeClaim" in v]
    assert {"ratchet-home", "ratchet-runs"} == {one["claimName"] for one in kept} <= claims
    # Prefect restarts an evicted pod, which finds its finished stages in the store
    assert variables["PREFECT_FLOW_RUN_EXECUTE_SIGTERM_BEHAVIOR"] == "reschedule"


def test_a_gpu_job_requests_a_gpu() -> None:
    gpu = json.loads((KUBERNETES / "gpu_variables.json").read_text())
    job = configured("kubernetes", **gpu)["job_manifest"]
    assert faults(job, "V1Job") == []
    pod = job["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert pod["tolerations"][0]["key"] == "nvidia.com/gpu"


def test_prefects_worker_creates_a_container_from_the_template() -> None:
    job = configured("docker")
    compose = yaml.safe_load((DEPLOYMENTS / "docker" / "compose.yaml").read_text())
    project = compose["name"]
    assert [name.removeprefix(f"{project}_") for name in job["networks"]] == ["services"]
    volumes = [volume.removeprefix(f"{project}_") for volume in job["volumes"]]
    assert volumes == compose["services"]["worker"]["volumes"]
    assert not any(volume.endswith(":/work") for volume in volumes), (
        "a volume would hide the image's experiments"
    )
    assert job["image"] == compose["services"]["worker"]["image"]
    assert job["container_create_kwargs"]["cap_drop"] == ["ALL"]
    assert job["privileged"] is False
    assert {"PREFECT_HOME", "PYTHONSAFEPATH"} <= set(job["env"])


@pytest.mark.parametrize("name", ["server", "worker"])
def test_chart_values_reference_secrets_and_contain_none(name: str) -> None:
    text = (KUBERNETES / f"{name}_values.yaml").read_text()
    values = yaml.safe_load(text)[name]
    login = values["basicAuth" if name == "server" else "selfHostedServerApiConfig"]
    login = login.get("basicAuth", login)
    assert login["enabled"] is True
    assert login["existingSecret"] == "prefect-auth"
    assert not login.get("authString")
    assert values["containerSecurityContext"]["runAsNonRoot"] is True
    if name == "worker":
        assert values["config"]["type"] == "kubernetes"


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Prefect commands of `ratchet deploy` with a server that has one pool, of type docker."""
    done: list[str] = []

    def answer(url: str, body: object = None, login: str | None = None) -> str | None:
        if url.endswith("/deployments/filter"):
            return "[]"
        return '{"type": "docker"}' if "/work_pools/" not in url or url.endswith("/lab") else None

    def note(command: list[str], environment: dict[str, str]) -> None:
        place = f"{environment['RATCHET_POOL']} {environment['RATCHET_PROJECT']}"
        done.append(f"{' '.join(command[3:])} | {place}")

    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    monkeypatch.setattr(deploy_module, "get_text", answer)
    monkeypatch.setattr(deploy_module, "_run", note)
    return done


@pytest.mark.parametrize("pool_type", ["docker", "kubernetes"])
def test_deploy_creates_a_container_pool_with_the_shipped_template(
    tmp_path: Path, commands: list[str], pool_type: str, capsys: pytest.CaptureFixture[str]
) -> None:
    deploy(tmp_path, pool="new", pool_type=pool_type)
    steps = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert steps == ["Creating", "Registering", "Registering", "Registered"]
    made, registered, *_ = commands
    template = DEPLOYMENTS / pool_type / "base_job_template.json"
    assert f"work-pool create new --type {pool_type} --base-job-template {template}" in made
    assert "deploy --all" in registered
    assert registered.endswith("| new /work"), "the image's project folder"


def test_deploy_uses_an_existing_pool_of_the_same_type_only(
    tmp_path: Path, commands: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    deploy(tmp_path, pool="lab", pool_type="docker")
    assert not any("create" in command for command in commands)
    commands.clear()
    with pytest.raises(LocalStackError, match=r"--type: got 'process'.*--type docker"):
        deploy(tmp_path, pool="lab")
    assert not commands
    deploy(tmp_path)
    assert "work-pool create ratchet --type process |" in commands[0]
    assert commands[1].endswith(f"| ratchet {tmp_path}")
