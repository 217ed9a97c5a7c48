"""A chat service that bills every request, and then loses a share of its responses."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from typing import Any

from aiohttp import web

PRICES = "models:\n  tiny: {input: 1000, output: 10000, training: 0}\n"  # per million tokens


class LosingService:
    """Bills each request at its maximum; ``share`` of the responses is lost.

    Lost: the connection cut, an error of the service, half a body, no JSON at all, or a timeout.
    """

    WAYS = ("cut", "500", "half", "html", "silent")

    def __init__(self, share: float, seed: int = 0, text: str = "Decision: accept") -> None:
        self.share, self.text = share, text
        self.billed = 0.0
        self.requests = 0
        self.lost: dict[str, int] = dict.fromkeys(self.WAYS, 0)
        self._random = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(started,), daemon=True)
        self._thread.start()
        started.wait()

    def _serve(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._answer)
        runner = web.AppRunner(app)
        self._loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, "127.0.0.1", 0)
        self._loop.run_until_complete(site.start())
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        started.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        prompt = sum(len(message["content"]) for message in asked["messages"]) // 2
        completion = self._random.randint(1, asked["max_tokens"])
        self.requests += 1
        self.billed += (1000 * prompt + 10000 * completion) / 1e6
        content = json.dumps(self._body(prompt, completion)).encode()
        way = self._random.choice(self.WAYS) if self._random.random() < self.share else ""
        await asyncio.sleep(self._random.random() * 0.01)
        if not way:
            return web.Response(body=content, content_type="application/json")
        self.lost[way] += 1
        if way == "500":
            return web.json_response({"error": {"message": "oh"}}, status=500)
        if way == "html":
            return web.Response(text="<html>wait</html>", content_type="text/html")
        if way == "silent":
            await asyncio.sleep(1)
        if way == "half":
            response = web.StreamResponse(headers={"content-length": str(len(content))})
            await response.prepare(request)
            await response.write(content[:30])
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    def _body(self, prompt: int, completion: int) -> dict[str, Any]:
        message = {"role": "assistant", "content": self.text}
        return {
            "model": "tiny",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": prompt, "completion_tokens": completion},
        }

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
