"""Prefect's server as this process would use it: is it there, is it the right one, does it work."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from http.client import HTTPException

from flows.process.checks.base import Answer, Check, Places, bad, good, warning
from flows.process.checks.storage import SKEW_SECONDS
from ratchet.tracking.urls import without_logins

_SECONDS = 5
_STARTUP = "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"
_EPHEMERAL = "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE"
_SHORTEST_STARTUP = 30
_NO = ("0", "false", "f", "no", "n", "off")


def ask_health(places: Places, url: str) -> Answer:
    """Ask a server for its health, once for all checks."""
    health = f"{url.rstrip('/')}/health"
    if health not in places.asked:
        places.asked[health] = ask(health)
    return places.asked[health]


def ask(url: str, headers: dict[str, str] | None = None) -> Answer:
    """GET a page; never raises for what a server or the network does."""
    begin = time.time()
    try:
        request = urllib.request.Request(url, headers=headers or {})
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
            text = answer.read().decode(errors="replace")
            return Answer(answer.status, text, _skew(answer.headers.get("Date"), begin))
    except urllib.error.HTTPError as error:
        return Answer(error.code, str(error), _skew(error.headers.get("Date"), begin))
    except (OSError, HTTPException, ValueError) as error:
        return Answer(None, str(error))


def _skew(date: str | None, begin: float) -> float:
    """Return by how many seconds a server's clock is ahead, as far as its answer tells."""
    if date is None:
        return 0.0
    try:
        there = parsedate_to_datetime(date).timestamp()
    except ValueError:
        return 0.0
    # it has whole seconds, and was written between the question and now
    return there - begin if there < begin - 1 else max(there - time.time(), 0.0)


def answers(
    places: Places, name: str, url: str, named_by: str, *, refusals: bool = False
) -> Iterator[Check]:
    """Say whether a server is well; with ``refusals`` those are answers of a server, too."""
    answer = ask_health(places, url)
    url = without_logins(url)
    status = answer.status
    if status == 200:
        yield good(name, f"{url} answers")
    elif refusals and status is not None and status < 500:
        yield good(name, f"{url} answers (HTTP {status})")
    else:
        at_home = "127.0.0.1" in url or "localhost" in url
        unset = f", or have none: `unset {named_by}`" if named_by.isupper() else ""
        advice = f"Start it: `ratchet up`{unset}." if at_home else f"Is {named_by} right?{unset}"
        yield bad(name, f"{url} does not answer ({answer.text}). {advice}")
    if abs(answer.skew) > SKEW_SECONDS:
        details = f"the clock of {url} is {answer.skew:+.0f} s off this machine's: schedules and"
        yield warning(
            f"{name} clock", f"{details} times mislead. Set both: `sudo timedatectl set-ntp true`"
        )


def prefect(places: Places) -> Iterator[Check]:
    """Check that the server that is named answers, or that a run can start one of its own."""
    url = os.environ.get("PREFECT_API_URL")
    if url is not None:
        yield from answers(places, "prefect", url, "PREFECT_API_URL")
        return
    allowed = os.environ.get(_EPHEMERAL)
    seconds = os.environ.get(_STARTUP, "")
    if allowed is not None and allowed.strip().lower() in _NO:
        yield bad("prefect", f"no server, and none may be started: `unset {_EPHEMERAL}`")
    elif seconds.isdecimal() and int(seconds) < _SHORTEST_STARTUP:
        details = f"no server: one starts with each run, in 5 to 12 s and more; {_STARTUP} gives it"
        yield warning("prefect", f"{details} {seconds} s: `unset {_STARTUP}`")
    else:
        yield good("prefect", "no server: each run starts one of its own")


def prefect_ui(places: Places) -> Iterator[Check]:
    """Check that the UI asks the server that it comes from."""
    url = os.environ.get("PREFECT_API_URL")
    if url is None:
        return
    answer = ask(f"{url.rstrip('/').removesuffix('/api')}/ui-settings")
    told = _json(answer).get("api_url")
    if not isinstance(told, str) or _same_place(told, url):
        return
    yield bad(
        "prefect UI",
        f"its pages ask {told}, the server is {url}, so that they stay empty. Start it with"
        f" `PREFECT_SERVER_UI_API_URL={url} prefect server start`, or use `ratchet up`",
    )


def prefect_access(places: Places) -> Iterator[Check]:
    """Check that the server lets us in, and is of the version that is installed here."""
    url = os.environ.get("PREFECT_API_URL")
    if url is None:
        return
    secret = os.environ.get("PREFECT_API_AUTH_STRING")
    headers = {}
    if secret:
        headers["Authorization"] = f"Basic {b64encode(secret.encode()).decode()}"
    answer = ask(f"{url.rstrip('/')}/admin/version", headers)
    if answer.status in (401, 403):
        what = "does not take PREFECT_API_AUTH_STRING" if secret else "wants a password"
        yield bad("prefect access", f"{url} {what}: `export PREFECT_API_AUTH_STRING=USER:PASSWORD`")
    there = _text(answer)
    here = _installed()
    if there is not None and here is not None and there != here:
        details = f"{url} has Prefect {there}, here is {here}"
        yield warning("prefect version", f"{details}: `pip install 'prefect=={there}'`")


def _json(answer: Answer) -> dict[str, object]:
    try:
        content = json.loads(answer.text) if answer.status == 200 else {}
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _text(answer: Answer) -> str | None:
    try:
        content = json.loads(answer.text) if answer.status == 200 else None
    except ValueError:
        return None
    return content if isinstance(content, str) else None


def _same_place(one: str, other: str) -> bool:
    """Whether two URLs lead to one server: relative ones lead to where the page came from."""
    if one.startswith("/"):
        return True
    first, second = urllib.parse.urlsplit(one), urllib.parse.urlsplit(other)
    loopback = {"localhost", "127.0.0.1", "0.0.0.0"}
    same_host = first.hostname == second.hostname or {first.hostname, second.hostname} <= loopback
    return same_host and first.port == second.port


def _installed() -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("prefect")
    except PackageNotFoundError:
        return None
