"""The local stack, Compose and Kubernetes run the same servers with the same settings."""

from __future__ import annotations

import os
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments.stack_services import stack_services
from flows.process.prefect_server import DOCUMENTATION
from flows.process.stack_file import ProcessMark, Stack
from tests.deployments.test_pools import manifests, pods

DEPLOYMENTS = Path(__file__).parents[2] / "deployments"
DOCKER = DEPLOYMENTS / "docker"
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
VALUES: dict[str, dict[str, Any]] = {
    name: yaml.safe_load((DEPLOYMENTS / "kubernetes" / f"{name}_values.yaml").read_text())
    for name in ("server", "worker")
}
AGREED = {
    "prefect": {
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": (
            "prefect.server.concurrency.lease_storage.filesystem"
        ),
        "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        "DO_NOT_TRACK": "1",
    },
    "mlflow": {
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    },
}
"""Service → variable → the value that it must have in all three."""


def image_environment() -> dict[str, str]:
    """Return the variables that the image of the servers sets."""
    stage = (DOCKER / "Dockerfile").read_text().partition(" AS base\n")[2].partition("\nRUN ")[0]
    return dict(re.findall(r"(\w+)=(\S+)", stage))


def local(service: str, home: Path) -> dict[str, str]:
    stack = Stack(4200, 5000, True, ProcessMark.from_pid(os.getpid()))
    services, *_ = stack_services(home, stack, worker=False)
    return next(each.environment for each in services if each.name == service)


def compose(service: str, _: Path) -> dict[str, str]:
    return {**image_environment(), **COMPOSE["services"][service]["environment"]}


def kubernetes(service: str, _: Path) -> dict[str, str]:
    entries = VALUES["server"]["server"]["env"]
    if service == "mlflow":
        (deployment,) = (each for each in manifests() if each["kind"] == "Deployment")
        entries = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    return {**image_environment(), **{each["name"]: each["value"] for each in entries}}


@pytest.mark.parametrize("service", AGREED)
@pytest.mark.parametrize("configuration", [local, compose, kubernetes])
def test_servers_have_the_same_settings_everywhere(configuration, service, tmp_path, monkeypatch):
    for name in AGREED[service]:
        monkeypatch.delenv(name, raising=False)
    environment = configuration(service, tmp_path)
    assert {name: environment.get(name) for name in AGREED[service]} == AGREED[service]


def test_leases_are_on_a_volume():
    server = COMPOSE["services"]["prefect"]
    assert f"prefect:{server['environment']['PREFECT_HOME']}" in server["volumes"]
    home = kubernetes("prefect", Path())["PREFECT_HOME"]
    values = VALUES["server"]["server"]
    assert {each["name"]: each["mountPath"] for each in values["extraVolumeMounts"]} == {
        "home": home
    }
    (volume,) = values["extraVolumes"]
    claims = {m["metadata"]["name"] for m in manifests() if m["kind"] == "PersistentVolumeClaim"}
    assert volume["persistentVolumeClaim"]["claimName"] in claims


def test_services_get_the_same_time_to_stop_and_rotate_their_logs():
    seconds = {pod["terminationGracePeriodSeconds"] for _, pod in pods()}
    periods = {each["stop_grace_period"] for each in COMPOSE["services"].values()}
    assert periods == {f"{number}s" for number in seconds} == {"60s"}
    for name, service in COMPOSE["services"].items():
        options = service["logging"]["options"]
        assert {"max-size", "max-file"} <= options.keys(), name


def test_copies_of_stages_are_not_in_memory():
    worker = COMPOSE["services"]["worker"]
    cache = Path(compose("worker", Path())["XDG_CACHE_HOME"])
    volumes = [volume.partition(":")[2] for volume in worker["volumes"]]
    assert any(cache.is_relative_to(volume) for volume in volumes)
    template = yaml.safe_load((DOCKER / "base_job_template.json").read_text())
    jobs = template["variables"]["properties"]["env"]["default"]
    assert jobs["XDG_CACHE_HOME"] == str(cache)


def test_pods_reserve_the_disk_space_that_they_may_use():
    for name, pod in pods():
        folders = [each["emptyDir"] for each in pod["volumes"] if "emptyDir" in each]
        sizes = [each.get("sizeLimit") for each in folders]
        requested = pod["containers"][0]["resources"]["requests"].get("ephemeral-storage")
        assert sizes == [requested], name
        assert requested is not None, name
    for name, values in VALUES.items():
        assert values[name]["resources"]["requests"]["ephemeral-storage"], name


def test_images_are_named_with_registry_and_version():
    properties = yaml.safe_load(
        (DEPLOYMENTS / "kubernetes" / "base_job_template.json").read_text()
    )["variables"]["properties"]
    images = [properties["image"]["default"]]
    images += [pod["containers"][0]["image"] for name, pod in pods() if name != "job"]
    server, worker = VALUES["server"]["global"]["prefect"]["image"], VALUES["worker"]["worker"]
    images += [f"{i['repository']}:{i['prefectTag']}" for i in (server, worker["image"])]
    images += [each["image"] for each in COMPOSE["services"].values() if "build" not in each]
    for image in images:
        assert re.fullmatch(r"[\w-]+(\.[\w-]+)+/[\w/-]+:\d+\.\d+[\w.-]*", image), image


def test_mlflow_has_time_for_migrations():
    (deployment,) = (each for each in manifests() if each["kind"] == "Deployment")
    probe = deployment["spec"]["template"]["spec"]["containers"][0]["startupProbe"]
    assert probe["failureThreshold"] * probe["periodSeconds"] >= 600


def test_the_network_policy_limits_both_directions():
    (policy,) = (each["spec"] for each in manifests() if each["kind"] == "NetworkPolicy")
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    for rule in policy["egress"]:
        blocks = [each["ipBlock"] for each in rule["to"] if "ipBlock" in each]
        assert all(each["except"] and rule["ports"] for each in blocks)
    ports = {(p["protocol"], p["port"]) for r in policy["egress"] for p in r.get("ports", ())}
    assert ports == {("UDP", 53), *(("TCP", port) for port in (53, 443, 5432, 6443))}


def test_the_proxy_asks_for_the_password_of_the_apis_documentation():
    site = (DOCKER / "Caddyfile").read_text().partition("prefect.{$RATCHET_DOMAIN}")[2]
    (patterns,) = re.findall(r"@documentation path (.+)", site)
    assert "redir @documentation /api{uri}" in site
    for path in DOCUMENTATION:
        assert any(fnmatch(path, pattern) for pattern in patterns.split()), path
