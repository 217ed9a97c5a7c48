"""A proxy that loses, cuts, duplicates and delays requests and responses."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Collection

import aiohttp
from aiohttp import web


class LosingProxy:
    """Forwards requests; a ``share`` of them fails, in alternating ways.

    ``lost``: the request never arrives. ``cut``, ``500``, ``half``, ``html``: it does, but its
    response is lost. ``late``: it arrives, times out, and arrives again while it is executed.
    ``doubled``: it arrives twice concurrently.
    """

    WAYS = ("lost", "cut", "500", "half", "html", "late", "doubled")

    def __init__(
        self, target: str, share: float, seed: int = 0, *, without: Collection[str] = ()
    ) -> None:
        self.target, self.share = target, share
        self.seen = {way: 0 for way in self.WAYS if way not in without}
        self._random = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(started,), daemon=True)
        self._thread.start()
        started.wait()

    def _serve(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app)
        self._loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, "127.0.0.1", 0)
        self._loop.run_until_complete(site.start())
        self._session = aiohttp.ClientSession(loop=self._loop)
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        started.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._session.close())
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        way = ""
        if self._random.random() < self.share:
            way = min(self.seen, key=lambda name: self.seen[name])
            self.seen[way] += 1
        if way == "lost":
            return self._cut(request)
        if way == "late":
            task = asyncio.ensure_future(self._send(request, body))
            await asyncio.sleep(0.005)
            self._late = task  # continues on its own
            return self._cut(request)
        if way == "doubled":
            results = await asyncio.gather(*(self._send(request, body) for _ in range(2)))
            assert results[0][1] == results[1][1]
        status, content, kind = await self._send(request, body)
        if way == "cut":
            return self._cut(request)
        if way == "500":
            return web.json_response({"error": {"message": "oh"}}, status=500)
        if way == "html":
            return web.Response(text="<html>wait</html>", content_type="text/html")
        if way == "half":
            response = web.StreamResponse(headers={"content-length": str(len(content))})
            await response.prepare(request)
            await response.write(content[: len(content) // 2])
            return self._cut(request)
        return web.Response(body=content, status=status, headers={"content-type": kind})

    async def _send(self, request: web.Request, body: bytes) -> tuple[int, bytes, str]:
        names = ("accept", "content-type")
        headers = {name: request.headers.get(name, "application/json") for name in names}
        url = f"{self.target}{request.path_qs}"
        async with self._session.request(request.method, url, data=body, headers=headers) as got:
            return got.status, await got.read(), got.headers["content-type"]

    def _cut(self, request: web.Request) -> web.Response:
        if request.transport is not None:
            request.transport.close()
        return web.Response()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
