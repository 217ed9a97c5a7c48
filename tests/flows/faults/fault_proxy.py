"""Proxy process between a client and the model service that injects faults into requests.

``python fault_proxy.py FOLDER`` reads ``FOLDER/plan.json`` and writes ``FOLDER/port`` when it
listens and a line to ``FOLDER/calls.jsonl`` for every request. The plan::

    {"upstream": "http://127.0.0.1:1234", "rules": [
        {"method": "POST", "path": "/fine_tuning/jobs", "nth": 0, "action": "cut_after"}]}

A rule fires once, at the ``nth`` request that it matches. Actions ("before": the service never
receives the request; "after": the service has processed it):

``429``, ``500``, ``503``      respond with this status, before
``503_after``, ``cut_after``   respond with 503, or close the connection, after
``cut_before``, ``half``       close the connection before; in the middle of the response
``html_after``                 respond with 200 and an HTML page, after
``silent_after``               never respond, after
``slow``                       respond late
``kill_before``, ``kill_after``, ``kill_answered``
                               kill the process of ``FOLDER/pid`` (SIGKILL) before the request is
                               forwarded, before the response, or right after it
``restart``                    write ``FOLDER/restart``, wait until the test has restarted the
                               service and removed it, then forward the request
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

LATE_SECONDS = 0.7
PAGE = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 22\r\nConnection: close\r\n\r\n"
    b"<html>Please</html>\r\n\n"
)
STATUS = {429: "Too Many Requests", 500: "Internal Server Error", 503: "Service Unavailable"}


@dataclass
class Request:
    """A received request."""

    method: str
    path: str
    head: bytes
    body: bytes


class Proxy:
    """Forwards requests, except those with a fault in the plan."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        plan = json.loads((folder / "plan.json").read_text())
        upstream = urlsplit(plan["upstream"])
        self.host, self.port = upstream.hostname, upstream.port
        self.rules = [dict(rule, seen=0, fired=False) for rule in plan["rules"]]
        self.log = (folder / "calls.jsonl").open("a", buffering=1)

    def action(self, request: Request) -> str | None:
        """Return the action of the first rule that fires; every rule counts its matches."""
        found = None
        for rule in self.rules:
            fits = request.method == rule["method"] and rule["path"] in request.path
            if not fits:
                continue
            fires = rule["seen"] == rule["nth"] and not rule["fired"]
            rule["seen"] += 1
            if fires and found is None:
                rule["fired"] = True
                found = str(rule["action"])
        return found

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle the single request of a connection."""
        try:
            request = await read_request(reader)
            if request is not None:
                await self.answer(request, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # clients are killed on purpose
        finally:
            writer.close()

    async def answer(self, request: Request, writer: asyncio.StreamWriter) -> None:
        """Respond according to the plan."""
        action = self.action(request)
        line = {"method": request.method, "path": request.path, "action": action}
        self.log.write(json.dumps(line) + "\n")
        if action in ("429", "500", "503"):
            return await send(writer, refusal(int(action)))
        if action == "cut_before":
            return None
        if action == "kill_before":
            return self.kill()
        if action == "restart":
            await self.restart()
        response = await self.forward(request)
        if action == "503_after":
            return await send(writer, refusal(503))
        if action == "html_after":
            return await send(writer, PAGE)
        if action == "cut_after":
            return None
        if action == "silent_after":
            await asyncio.sleep(3600)
        if action == "slow":
            await asyncio.sleep(LATE_SECONDS)
        if action == "kill_after":
            return self.kill()
        await send(writer, response[: len(response) // 2] if action == "half" else response)
        if action == "kill_answered":
            writer.close()
            await asyncio.sleep(0.02)
            self.kill()
        return None

    def kill(self) -> None:
        """Kill the client."""
        os.kill(int((self.folder / "pid").read_text()), signal.SIGKILL)

    async def restart(self) -> None:
        """Request a restart of the service and wait for it."""
        flag = self.folder / "restart"
        flag.touch()
        while flag.exists():
            await asyncio.sleep(0.02)

    async def forward(self, request: Request) -> bytes:
        """Return the service's complete response."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        writer.write(request.head + request.body)
        await writer.drain()
        response = await reader.read(-1)
        writer.close()
        return response


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """Read one request; set ``Connection: close`` in its head."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *fields = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    method, path, _ = first.split(" ")
    kept, length, chunked = [], 0, False
    for field in fields:
        name, _, value = field.partition(":")
        if name.lower() == "content-length":
            length = int(value)
        if name.lower() == "transfer-encoding":
            chunked = "chunked" in value
        if name.lower() != "connection":
            kept.append(field)
    body = await read_chunks(reader) if chunked else await reader.readexactly(length)
    lines = "\r\n".join([first, *kept, "Connection: close", "", ""])
    return Request(method, path, lines.encode("latin-1"), body)


async def read_chunks(reader: asyncio.StreamReader) -> bytes:
    """Read a chunked body without decoding it."""
    body = b""
    while True:
        line = await reader.readline()
        chunk = await reader.readexactly(int(line.strip(), 16) + 2)
        body += line + chunk
        if line.strip() == b"0":
            return body


def refusal(status: int) -> bytes:
    """Return an error response in OpenAI's format."""
    error = {"message": "spoiled by a test", "type": "server_error", "param": None, "code": None}
    body = json.dumps({"error": error}).encode()
    after = "Retry-After: 0\r\n" if status == 429 else ""
    head = (
        f"HTTP/1.1 {status} {STATUS[status]}\r\nContent-Type: application/json\r\n{after}"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


async def send(writer: asyncio.StreamWriter, content: bytes) -> None:
    """Write the content and drain the stream."""
    writer.write(content)
    await writer.drain()


async def main(folder: Path) -> None:
    """Serve until killed."""
    proxy = Proxy(folder)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=2**26)
    port = server.sockets[0].getsockname()[1]
    (folder / "port.new").write_text(str(port))
    (folder / "port.new").rename(folder / "port")
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
