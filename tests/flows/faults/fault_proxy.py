"""A proxy between a client and the model service that spoils chosen requests, as a process.

``python fault_proxy.py FOLDER`` reads ``FOLDER/plan.json`` and writes ``FOLDER/port`` when it
listens and a line to ``FOLDER/calls.jsonl`` for every request. The plan::

    {"upstream": "http://127.0.0.1:1234", "rules": [
        {"method": "POST", "path": "/fine_tuning/jobs", "nth": 0, "action": "cut_after"}]}

A rule fires once, at the ``nth`` request that it fits. Actions, with "before" meaning that the
service never hears of the request and "after" that it has acted on it:

``429``, ``500``, ``503``      answer so, before
``503_after``, ``cut_after``   answer so, or cut the connection, after
``cut_before``, ``half``       cut before; cut in the middle of the answer
``html_after``                 act, and answer 200 with a page
``silent_after``               act, and never answer
``slow``                       answer late
``kill_before``, ``kill_after``, ``kill_answered``
                               kill the process of ``FOLDER/pid`` (SIGKILL) before the request is
                               passed on, before it is answered, or right after
``restart``                    write ``FOLDER/restart`` and wait until it is gone: whoever watches
                               it restarts the service; then pass the request on
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
    """A request as it came over the wire."""

    method: str
    path: str
    head: bytes
    body: bytes


class Proxy:
    """Passes requests on, but for those that a rule of the plan spoils."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        plan = json.loads((folder / "plan.json").read_text())
        upstream = urlsplit(plan["upstream"])
        self.host, self.port = upstream.hostname, upstream.port
        self.rules = [dict(rule, seen=0, fired=False) for rule in plan["rules"]]
        self.log = (folder / "calls.jsonl").open("a", buffering=1)

    def action(self, request: Request) -> str | None:
        """Return what the first rule that fires does; every rule counts what it fits."""
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
        """Answer the one request of a connection."""
        try:
            request = await read_request(reader)
            if request is not None:
                await self.answer(request, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # a killed client is what this is about
        finally:
            writer.close()

    async def answer(self, request: Request, writer: asyncio.StreamWriter) -> None:
        """Do what the plan says."""
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
        """Ask for a restart of the service and wait for it."""
        flag = self.folder / "restart"
        flag.touch()
        while flag.exists():
            await asyncio.sleep(0.02)

    async def forward(self, request: Request) -> bytes:
        """Return the service's whole answer."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        writer.write(request.head + request.body)
        await writer.drain()
        response = await reader.read(-1)
        writer.close()
        return response


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """Read one request; its head is changed to ask for one answer a connection."""
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
    """Read a chunked body, as it is."""
    body = b""
    while True:
        line = await reader.readline()
        chunk = await reader.readexactly(int(line.strip(), 16) + 2)
        body += line + chunk
        if line.strip() == b"0":
            return body


def refusal(status: int) -> bytes:
    """Write an error in OpenAI's shape."""
    error = {"message": "spoiled by a test", "type": "server_error", "param": None, "code": None}
    body = json.dumps({"error": error}).encode()
    after = "Retry-After: 0\r\n" if status == 429 else ""
    head = (
        f"HTTP/1.1 {status} {STATUS[status]}\r\nContent-Type: application/json\r\n{after}"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


async def send(writer: asyncio.StreamWriter, content: bytes) -> None:
    """Write and wait until it is on its way."""
    writer.write(content)
    await writer.drain()


async def main(folder: Path) -> None:
    """Listen until killed."""
    proxy = Proxy(folder)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=2**26)
    port = server.sockets[0].getsockname()[1]
    (folder / "port.new").write_text(str(port))
    (folder / "port.new").rename(folder / "port")
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
