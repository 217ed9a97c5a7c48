"""Small fine-tuning services in their documented formats, with scripted failures."""

from __future__ import annotations

import re
import threading
import time
from typing import Any

from local_services import (
    Answer,
    FineTuneService,
    LocalService,
    Request,
    chat_answer,
    error_body,
)

Item = dict[str, Any]


class TuningService(LocalService):
    """``fates`` scripts the outcome of the next requests for a job or a deployment.

    Its terms are those of :class:`FineTuneService`. New items are listed ``lag`` seconds later.
    """

    def __init__(self) -> None:
        super().__init__()
        self.files: list[Item] = []
        self.jobs: list[Item] = []
        self.deployments: list[Item] = []
        self.fates: dict[str, list[str]] = {"job": [], "deployment": []}
        self.lag = 0.0
        self.made_at: dict[Any, float] = {}
        self.accepted = threading.Event()

    def answer(self, request: Request) -> Answer:
        with self.lock:
            return self.route(request)

    def route(self, request: Request) -> Answer:
        raise NotImplementedError

    def shown(self, items: list[Item]) -> list[Item]:
        return [i for i in items if self.made_at.get(id(i), 0) <= time.monotonic() - self.lag]


def make(service: TuningService | AzureService, kind: str, into: list[Item], item: Item) -> Answer:
    """Execute a creation request, or its scripted failure."""
    fates = service.fates[kind]
    fate = fates.pop(0) if fates else "ok"
    early = {
        "503 before": Answer(503, error_body("busy")),
        "429 before": Answer(429, error_body("slowly")),
        "cut before": Answer(cut=True),
        "refused": Answer(400, error_body(f"no such {kind}", "invalid")),
    }
    if fate in early:
        return early[fate]
    service.made_at[id(item)] = time.monotonic()
    into.append(item)
    service.accepted.set()
    if fate == "503 after":
        return Answer(503, error_body("lost in between"))
    if fate == "cut after":
        return Answer(cut=True)
    if fate == "html after":
        return Answer(body=b"<html><h1>502 Bad Gateway</h1></html>")
    return Answer(body=item, delay=1.5 if fate == "stall after" else 0.0)


def form_field(request: Request, name: str) -> str:
    found = re.search(rf'name="{name}"[^\r]*\r\n(?:[^\r]+\r\n)*\r\n([^\r]*)'.encode(), request.body)
    assert found is not None, f"no {name} in {request.body[:500]!r}"
    return found[1].decode()


class AzureService(FineTuneService):
    """The resource (files and jobs), and the management plane (deployments), in one process.

    A new file can't be used immediately. ``deploying``: number of polls that show a deployment as
    in progress.
    """

    ACCOUNT = "/subscriptions/s/resourceGroups/g/providers/Microsoft.CognitiveServices/accounts/a"

    def __init__(self) -> None:
        super().__init__()
        self.keeps_metadata = False
        self.deployments: list[Item] = []
        self.fates: dict[str, list[str]] = {"job": self.on_create, "deployment": []}
        self.ends_as = "Succeeded"
        self.looks: dict[str, int] = {}
        self.url = self.url.removesuffix("/v1")

    def _answer(self, request: Request) -> Answer:
        if request.path.startswith(self.ACCOUNT):
            assert request.headers["authorization"].startswith("Bearer ")
            assert request.query["api-version"]
            return self._manage(request)
        assert request.headers["api-key"]
        request.path = request.path.removeprefix("/openai")
        if request.path.endswith("/chat/completions"):
            return self._chat(request.path.split("/")[2])
        if request.path == "/files" and request.method == "POST":
            super()._answer(request)
            return Answer(body=dict(self.files[-1], status="pending"))
        if request.path.startswith("/files/"):
            return Answer(body=next(f for f in self.files if request.path.endswith(f["id"])))
        return super()._answer(request)

    def _chat(self, name: str) -> Answer:
        ready = [d for d in self.deployments if d["properties"]["provisioningState"] == "Succeeded"]
        if name == "tiny" or any(item["name"] == name for item in ready):
            return Answer(body=chat_answer("Question: why?"))
        reason = "The API deployment for this resource does not exist."
        return Answer(404, error_body(reason, "DeploymentNotFound"))

    def _manage(self, request: Request) -> Answer:
        name = request.path.removeprefix(f"{self.ACCOUNT}/deployments").strip("/")
        known = next((item for item in self.deployments if item["name"] == name), None)
        if request.method == "PUT":
            body = request.json
            assert body["sku"]["capacity"] >= 1
            assert body["properties"]["model"]["format"] == "OpenAI"
            properties = {**body["properties"], "provisioningState": "Creating"}
            if known is not None:
                known["properties"] = properties
                return Answer(200, known)
            item = {"name": name, "sku": body["sku"], "properties": properties}
            return make(self, "deployment", self.deployments, item)
        if request.method == "DELETE":
            self.deployments.remove(known)
            return Answer(202, {})
        for item in self.deployments:
            self.looks[item["name"]] = self.looks.get(item["name"], 0) + 1
            if (
                self.looks[item["name"]] > 1
                and item["properties"]["provisioningState"] == "Creating"
            ):
                item["properties"]["provisioningState"] = self.ends_as
        return Answer(body={"value": self.deployments})


class TogetherService(TuningService):
    """Files, fine-tunes and endpoints. No metadata, no keys, no pages."""

    def __init__(self) -> None:
        super().__init__()
        self.ends_as = "STARTED"

    def route(self, request: Request) -> Answer:
        assert request.headers["authorization"].startswith("Bearer ")
        place = (request.method, *request.path.removeprefix("/v1/").split("/"))
        match place:
            case ("GET", "files"):
                return Answer(body={"data": self.shown(self.files)})
            case ("POST", "files", "upload"):
                assert form_field(request, "purpose") == "fine-tune"
                name = form_field(request, "file_name")
                self.files.append({"id": f"file-{len(self.files)}", "filename": name})
                self.files[-1] |= {"object": "file", "Processed": True, "purpose": "fine-tune"}
                return Answer(body=self.files[-1])
            case ("GET", "fine-tunes"):
                return Answer(body={"data": self.shown(self.jobs)})
            case ("POST", "fine-tunes"):
                body = request.json
                number = len(self.jobs)
                item = {
                    "id": f"ft-{number}",
                    "status": "pending",
                    "created_at": f"2026-01-01T00:00:{number:02d}Z",
                    "model_output_name": f"me/{body['model'].rpartition('/')[2]}-{number}",
                    "token_count": 0,
                    "events": [{"object": "fine-tune-event", "message": "Job created"}],
                    **body,
                }
                return make(self, "job", self.jobs, item)
            case ("GET", "fine-tunes", name):
                found = [job for job in self.jobs if job["id"] == name]
                return Answer(body=found[0]) if found else Answer(404, error_body("not found"))
            case ("POST", "fine-tunes", name, "cancel"):
                next(job for job in self.jobs if job["id"] == name)["status"] = "cancelled"
                return Answer(body={})
            case ("GET", "endpoints"):
                answer = Answer(body={"object": "list", "data": [*self.shown(self.deployments)]})
                answer.body["data"] = [dict(item) for item in answer.body["data"]]
                for item in self.deployments:
                    item["state"] = self.ends_as
                return answer
            case ("POST", "endpoints"):
                body = request.json
                assert body["autoscaling"]["max_replicas"] >= 1
                item = {
                    "object": "endpoint",
                    "id": f"endpoint-{len(self.deployments)}",
                    "name": f"me/{body['model']}-{len(self.deployments)}",
                    "state": "PENDING",
                    "type": "dedicated",
                    **body,
                }
                return make(self, "deployment", self.deployments, item)
            case ("DELETE", "endpoints", name):
                self.deployments[:] = [item for item in self.deployments if item["id"] != name]
                return Answer(204, b"")
        return Answer(404, error_body(f"unknown {request.method} {request.path}"))


class FireworksService(TuningService):
    """Datasets, jobs, deployments and loaded models of the account ``acct``, by chosen ids."""

    def __init__(self) -> None:
        super().__init__()
        self.ends_as = "READY"

    def route(self, request: Request) -> Answer:
        assert request.headers["authorization"].startswith("Bearer ")
        prefix = "/v1/accounts/acct/"
        assert request.path.startswith(prefix), request.path
        path = request.path.removeprefix(prefix)
        collection, _, rest = path.partition("/")
        if request.method == "POST" and not rest:
            return self.create(collection, request)
        name, _, verb = rest.partition(":")
        items = self.items(collection)
        if not rest:
            return Answer(body={collection: self.shown(items)})
        found = next((i for i in items if i["name"] == f"accounts/acct/{collection}/{name}"), None)
        if found is None:
            return Answer(404, {"code": 5, "message": f"{name} not found", "details": []})
        if verb == "upload":
            assert form_field(request, "file").startswith('{"messages"')
            found["state"] = "UPLOADING"
        elif verb == "cancel":
            found["state"] = "JOB_STATE_CANCELLED"
        elif request.method == "DELETE":
            items.remove(found)
        elif collection == "datasets":
            seen = dict(found)
            found["state"] = "READY" if found["state"] == "UPLOADING" else found["state"]
            return Answer(body=seen)
        elif collection in ("deployments", "deployedModels"):
            self.settle(found)
        return Answer(body=dict(found))

    def settle(self, item: Item) -> None:
        if item["state"] in ("CREATING", "DEPLOYING"):
            item["state"] = self.ends_as

    def items(self, collection: str) -> list[Item]:
        if collection == "datasets":
            return self.files
        return self.deployments if collection.startswith("deploy") else self.jobs

    def create(self, collection: str, request: Request) -> Answer:
        body = request.json
        if collection == "datasets":
            chosen, body = body["datasetId"], {**body["dataset"], "state": "CREATING"}
        elif collection == "deployedModels":
            chosen = f"{body['model'].rpartition('/')[2]}-{len(self.deployments)}"
            body = {**body, "state": "DEPLOYING"}
        elif collection == "deployments":
            chosen, body = request.query["deploymentId"][0], {**body, "state": "CREATING"}
        else:
            chosen = request.query[f"{collection[:-1]}Id"][0]
            assert body["dataset"].startswith("accounts/acct/datasets/")
            body = {**body, "state": "JOB_STATE_CREATING"}
        name = f"accounts/acct/{collection}/{chosen}"
        items = self.items(collection)
        if any(item["name"] == name for item in items):
            return Answer(409, {"code": 6, "message": f"{name} already exists", "details": []})
        kind = "deployment" if collection.startswith("deploy") else "job"
        item = {"name": name, **body}
        if collection == "datasets":
            items.append(item)
            return Answer(body=item)
        return make(self, kind, items, item)


class LoadedFireworksService(FireworksService):
    """As :class:`FireworksService`, where models are loaded onto one deployment."""

    def __init__(self) -> None:
        super().__init__()
        self.ends_as = "DEPLOYED"

    def route(self, request: Request) -> Answer:
        answer = super().route(request)
        if request.method == "GET" and request.path.endswith("/deployedModels"):
            answer.body = {"deployedModels": [dict(item) for item in answer.body["deployedModels"]]}
            for item in self.deployments:
                self.settle(item)
        return answer


class VllmService(TuningService):
    """A vLLM with ``--enable-lora``; ``trainer`` is the service that trains its adapters."""

    def __init__(self) -> None:
        super().__init__()
        self.trainer = AdapterTrainingService()
        self.fates["job"] = self.trainer.on_create
        self.jobs, self.files = self.trainer.jobs, self.trainer.files

    def route(self, request: Request) -> Answer:
        text = {"content-type": "text/plain"}
        match request.path:
            case "/v1/models":
                base: list[Item] = [{"id": "tiny", "root": "/models/tiny", "parent": None}]
                return Answer(body={"object": "list", "data": base + self.deployments})
            case "/v1/load_lora_adapter":
                body = request.json
                if any(item["id"] == body["lora_name"] for item in self.deployments):
                    reason = f"The lora adapter '{body['lora_name']}' has already been loaded."
                    return Answer(400, error_body(reason, "InvalidUserInput"))
                if "missing" in body["lora_path"]:
                    return Answer(404, error_body("No adapter found", "NotFoundError"))
                if "long chain" in body["lora_path"]:
                    reason = "LoRA rank 12 is greater than max_lora_rank 8."
                    return Answer(500, error_body(reason, "InternalServerError"))
                item = {"id": body["lora_name"], "root": body["lora_path"], "parent": "tiny"}
                answer = make(self, "deployment", self.deployments, item)
                if answer.body is item:
                    answer.body = b"Success: LoRA adapter added successfully."
                    answer.headers = text
                return answer
            case "/v1/unload_lora_adapter":
                name = request.json["lora_name"]
                self.deployments[:] = [item for item in self.deployments if item["id"] != name]
                return Answer(body=b"Success: LoRA adapter removed successfully.", headers=text)
        return Answer(404, error_body("Not Found"))

    def close(self) -> None:
        super().close()
        self.trainer.close()


class AdapterTrainingService(FineTuneService):
    """Ratchet's service as a backend sees it: reports the locations of models."""

    def _answer(self, request: Request) -> Answer:
        if request.path.startswith("/v1/models/"):
            name = request.path.removeprefix("/v1/models/")
            return Answer(body={"id": name, "object": "model", "root": f"/llm/models/of-{name}"})
        return super()._answer(request)
