"""A scripted service on a real local port: responds, refuses, stalls or hangs up."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ratchet.language_models.retrying import RetryPolicy

QUICK = RetryPolicy(max_attempts=4, first_delay_seconds=0.01, max_delay_seconds=0.05)


def chat_answer(text: str = "Hello", finish: str = "stop", **message: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "tiny-1",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text, **message},
                "finish_reason": finish,
            }
        ],
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
    }


def error_body(message: str, code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": "error", "param": None, "code": code}}


@dataclass
class Answer:
    """The response to the next request; ``cut``: the connection is closed without one."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    cut: bool = False


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes
    at: float

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class LocalService:
    """Chat responses come from ``script`` until it is used up, then from ``default``."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.script: list[Answer] = []
        self.default = Answer(body=chat_answer())
        self.lock = threading.Lock()
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                self._serve()

            def do_POST(self) -> None:
                self._serve()

            def do_PUT(self) -> None:
                self._serve()

            def do_DELETE(self) -> None:
                self._serve()

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def _serve(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                url = urlsplit(self.path)
                headers = {name.lower(): value for name, value in self.headers.items()}
                body = self.rfile.read(length)
                now = time.monotonic()
                request = Request(self.command, url.path, parse_qs(url.query), headers, body, now)
                with service.lock:
                    service.requests.append(request)
                answer = service.answer(request)
                time.sleep(answer.delay)
                if answer.cut:
                    self.close_connection = True
                    self.connection.close()
                    return
                content = (
                    answer.body
                    if isinstance(answer.body, bytes)
                    else json.dumps(answer.body).encode()
                )
                try:
                    self.send_response(answer.status)
                    if "content-type" not in answer.headers:
                        self.send_header("content-type", "application/json")
                    self.send_header("content-length", str(len(content)))
                    for name, value in answer.headers.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(content)
                except OSError:
                    self.close_connection = True

        class Server(ThreadingHTTPServer):
            request_queue_size = 256
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        self._thread.start()

    def answer(self, request: Request) -> Answer:
        with self.lock:
            return self.script.pop(0) if self.script else self.default

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class FineTuneService(LocalService):
    """Files and jobs. ``on_create`` scripts the outcome of the next creation requests.

    ``"503 before"``, ``"429 before"`` and ``"cut before"``: the job is not created; ``"503
    after"``, ``"cut after"``, ``"stall after"``: it is created without a success response.
    ``spoilt`` contains bodies that replace the next responses of a kind, such as ``"POST jobs"``.
    Jobs and files are listed ``lag`` seconds after creation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.made_at: dict[Any, float] = {}
        self.files: list[dict[str, Any]] = []
        self.jobs: list[dict[str, Any]] = []
        self.on_create: list[str] = []
        self.filters_metadata = True
        self.keeps_metadata = True
        self.page = 2
        self.lag = 0.0
        self.spoilt: dict[str, list[bytes]] = {}
        self.accepted = threading.Event()

    def answer(self, request: Request) -> Answer:
        with self.lock:
            answer = self._answer(request)
            spoilt = self.spoilt.get(f"{request.method} {request.path.rpartition('/')[2]}")
            if spoilt:
                answer.body = spoilt.pop(0)
            return answer

    def _answer(self, request: Request) -> Answer:
        path = request.path.removeprefix("/v1")
        if path == "/files":
            if request.method == "GET":
                return self._page(self.files, request)
            name = request.body.partition(b'filename="')[2].partition(b'"')[0].decode()
            self.files.append(
                {
                    "id": f"file-{len(self.files)}",
                    "object": "file",
                    "bytes": len(request.body),
                    "created_at": 1,
                    "filename": name,
                    "purpose": "fine-tune",
                    "status": "processed",
                }
            )
            self.made_at[self.files[-1]["id"]] = time.monotonic()
            return Answer(body=self.files[-1])
        if path == "/fine_tuning/jobs":
            return self._create(request) if request.method == "POST" else self._list(request)
        job_id, _, verb = path.removeprefix("/fine_tuning/jobs/").partition("/")
        if verb == "cancel":
            next(job for job in self.jobs if job["id"] == job_id)["status"] = "cancelled"
        elif verb:
            return Answer(404, error_body(f"no {verb}"))
        return Answer(body=next(job for job in self.jobs if job["id"] == job_id))

    def _list(self, request: Request) -> Answer:
        jobs = self.jobs
        wanted = {
            name[len("metadata[") : -1]: values[0]
            for name, values in request.query.items()
            if name.startswith("metadata[")
        }
        if wanted and self.filters_metadata:
            jobs = [job for job in jobs if wanted.items() <= (job["metadata"] or {}).items()]
        return self._page(jobs, request)

    def _page(self, items: list[dict[str, Any]], request: Request) -> Answer:
        shown = time.monotonic() - self.lag
        items = [item for item in items if self.made_at[item["id"]] <= shown]
        ids = [item["id"] for item in items]
        after = request.query.get("after", [None])[0]
        start = ids.index(after) + 1 if after is not None else 0
        page = items[start : start + self.page]
        more = start + self.page < len(items)
        return Answer(body={"object": "list", "data": page, "has_more": more})

    def _create(self, request: Request) -> Answer:
        fate = self.on_create.pop(0) if self.on_create else "ok"
        if fate == "503 before":
            return Answer(503, error_body("busy"))
        if fate == "429 before":
            return Answer(429, error_body("slowly"))
        if fate == "cut before":
            return Answer(cut=True)
        if fate == "refused":
            return Answer(400, error_body("model can't be fine-tuned", "invalid_model"))
        body = request.json
        self.jobs.append(
            {
                "id": f"ftjob-{len(self.jobs)}",
                "object": "fine_tuning.job",
                "created_at": 100 + len(self.jobs),
                "status": "queued",
                "model": body["model"],
                "fine_tuned_model": None,
                "training_file": body["training_file"],
                "hyperparameters": {},
                "method": body["method"],
                "suffix": body.get("suffix"),
                "metadata": body["metadata"] if self.keeps_metadata else None,
                "error": None,
                "trained_tokens": None,
                "organization_id": "o",
                "result_files": [],
                "seed": body.get("seed", 0),
            }
        )
        self.made_at[self.jobs[-1]["id"]] = time.monotonic()
        self.accepted.set()
        if fate == "503 after":
            return Answer(503, error_body("lost in between"))
        if fate == "cut after":
            return Answer(cut=True)
        return Answer(body=self.jobs[-1], delay=1.5 if fate == "stall after" else 0.0)
