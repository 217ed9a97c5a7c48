"""Access control: key, host, origin and size of requests.

Plain ASGI, before the request's body is read.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ratchet.service.api.errors import ApiError
from ratchet.service.api.streaming import response_id
from ratchet.service.settings import Limits, ServiceSettings

_LOOPBACK_NAMES = {"127.0.0.1", "localhost", "::1"}
HEALTH_PATH = "/health"
FILES_PATH = "/v1/files"
DOWNLOADS_PATH = "/api/v1/downloads/"
"""Prefix of URLs that contain a signature instead of a key in the headers."""
_TRAINING_PATHS = ("/v1/training/", "/api/v1/")
_KEY_HEADER = "x-api-key"
"""The header in which the ``tinker`` client sends its key."""


class Gate:
    """Passes on requests that are allowed and within the size limit.

    Web pages that are open on this machine must not reach a service without a key, which listens on
    loopback only: requests for another host or from another origin are refused.
    """

    def __init__(self, app: ASGIApp, settings: ServiceSettings) -> None:
        self._app = app
        self._key = None if settings.api_key is None else settings.api_key.encode()
        self._loopback = settings.is_loopback
        self._limits = settings.limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        send = _numbered(send)
        try:
            self._check(scope["path"], headers)
            limit = self._limit(scope["path"], headers)
        except ApiError as error:
            await error.to_response()(scope, receive, send)
            return
        await self._app(scope, _counted(receive, limit, self._limits), send)

    def _check(self, path: str, headers: Headers) -> None:
        if self._key is not None:
            if path != HEALTH_PATH and not path.startswith(DOWNLOADS_PATH):
                api_key = headers.get(_KEY_HEADER)
                sent = headers.get("authorization", "") if api_key is None else f"Bearer {api_key}"
                self._check_key(sent)
        elif self._loopback:
            origin = headers.get("origin")
            names = [_host_of(f"//{headers.get('host', '')}")]
            if origin is not None:
                names.append(_host_of(origin))
            if not _LOOPBACK_NAMES.issuperset(names):
                message = f"Requests for or from {names[-1]!r} are refused; use http://127.0.0.1."
                raise ApiError(403, message, code="foreign_host")

    def _check_key(self, authorization: str) -> None:
        scheme, _, key = authorization.partition(" ")
        assert self._key is not None
        if scheme.lower() != "bearer" or not hmac.compare_digest(
            key.strip().encode("utf-8", "replace"), self._key
        ):
            raise ApiError(
                401,
                "The API key is missing or wrong. Send it as 'Authorization: Bearer KEY'.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _limit(self, path: str, headers: Headers) -> int:
        is_upload = path.rstrip("/") == FILES_PATH or path.startswith(_TRAINING_PATHS)
        limit = self._limits.upload_bytes if is_upload else self._limits.request_bytes
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > limit:
            raise _too_large(limit)
        return limit


def _numbered(send: Send) -> Send:
    """Add an id to the response, by which clients report a failed request."""
    number = response_id("req_")

    async def numbering(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message)["x-request-id"] = number
        await send(message)

    return numbering


def _counted(receive: Receive, limit: int, limits: Limits) -> Receive:
    """Stop reading above the limit, regardless of the announced size, or at a stall."""
    seen, is_complete = 0, False
    start = time.monotonic()

    async def counting() -> Message:
        nonlocal seen, is_complete
        if is_complete:  # only the client's disconnect can follow
            return await receive()
        until = start + limits.idle_seconds + seen / limits.bytes_per_second
        try:
            async with asyncio.timeout(until - time.monotonic()):
                message = await receive()
        except TimeoutError as error:
            raise _stalled(seen) from error
        if message["type"] == "http.request":
            seen += len(message.get("body", b""))
            is_complete = not message.get("more_body", False)
            if seen > limit:
                raise _too_large(limit)
        return message

    return counting


def _stalled(seen: int) -> ApiError:
    return ApiError(
        408,
        f"The request is incomplete; {seen} bytes of its body arrived. Send it again.",
        code="request_timeout",
        headers={"Connection": "close"},
    )


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"The request is larger than {limit} bytes.", code="request_too_large")


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
