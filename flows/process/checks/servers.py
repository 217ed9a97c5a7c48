"""Checks of the servers: Prefect, its PostgreSQL database, and MLflow."""

from __future__ import annotations

import asyncio
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
from typing import NamedTuple

from flows.process.checks.base import (
    SKEW_SECONDS,
    Check,
    HealthResponse,
    Installation,
    bad,
    good,
    warning,
)
from flows.process.stack_file import running_stack
from ratchet.tracking.mirrors.mlflow.client import is_unfinished, unfinished_text
from ratchet.tracking.urls import mlflow_page, without_logins

_SECONDS = 5
_STARTUP = "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"
_EPHEMERAL = "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE"
_MIN_STARTUP = 30
_NO = ("0", "false", "f", "no", "n", "off")


def get_health(installation: Installation, url: str) -> HealthResponse:
    """Query a server's health, once for all checks."""
    health = f"{url.rstrip('/')}/health"
    if health not in installation.responses:
        installation.responses[health] = get(health)
    return installation.responses[health]


def get(url: str, headers: dict[str, str] | None = None) -> HealthResponse:
    """GET a page; server and network errors do not raise."""
    start = time.time()
    try:
        request = urllib.request.Request(url, headers=headers or {})
        with urllib.request.urlopen(request, timeout=_SECONDS) as response:
            text = response.read().decode(errors="replace")
            return HealthResponse(response.status, text, _skew(response.headers.get("Date"), start))
    except urllib.error.HTTPError as error:
        return HealthResponse(error.code, str(error), _skew(error.headers.get("Date"), start))
    except (OSError, HTTPException, ValueError) as error:
        return HealthResponse(None, str(error))


def _skew(date: str | None, start: float) -> float:
    """Return a lower bound on a server clock's lead in seconds, from its ``Date`` header."""
    if date is None:
        return 0.0
    try:
        server = parsedate_to_datetime(date).timestamp()
    except ValueError:
        return 0.0
    # the header has whole seconds and was written between the request and now
    return server - start if server < start - 1 else max(server - time.time(), 0.0)


def check_health(
    installation: Installation,
    name: str,
    url: str,
    source: str,
    *,
    page: str | None = None,
    accept_errors: bool = False,
) -> Iterator[Check]:
    """Check that a server responds, and report its UI's page.

    ``accept_errors``: accept a status from 300 to 499 too.
    """
    response = get_health(installation, url)
    url = without_logins(url)
    status = response.status
    if status == 200:
        yield good(name, f"{page or url} responds")
    elif accept_errors and status is not None and status < 500:
        yield good(name, f"{page or url} responds (HTTP {status})")
    else:
        is_local = "127.0.0.1" in url or "localhost" in url
        unset = f", or use no server: `unset {source}`" if source.isupper() else ""
        advice = f"Start it: `ratchet up`{unset}." if is_local else f"Is {source} correct?{unset}"
        yield bad(name, f"{url} does not respond ({response.text}). {advice}")
    if abs(response.skew) > SKEW_SECONDS:
        details = f"the clock of {url} is {response.skew:+.0f} s off this machine's: schedules and"
        yield warning(
            f"{name} clock",
            f"{details} times are wrong. Set both: `sudo timedatectl set-ntp true`",
        )


def prefect(installation: Installation) -> Iterator[Check]:
    """Check that the configured server responds, or that a run can start a temporary one."""
    url = os.environ.get("PREFECT_API_URL")
    if url is not None:
        yield from check_health(installation, "prefect", url, "PREFECT_API_URL")
        return
    allowed = os.environ.get(_EPHEMERAL)
    seconds = os.environ.get(_STARTUP, "")
    if allowed is not None and allowed.strip().lower() in _NO:
        yield bad("prefect", f"no server, and runs may not start one: `unset {_EPHEMERAL}`")
    elif seconds.isdecimal() and int(seconds) < _MIN_STARTUP:
        details = f"no server: the first run starts one, in 5 to 12 s or more; {_STARTUP} allows"
        yield warning("prefect", f"{details} {seconds} s: `unset {_STARTUP}`")
    else:
        yield good("prefect", "no server: runs of a folder share a temporary one")


def prefect_ui(installation: Installation) -> Iterator[Check]:
    """Check that the UI queries the server that serves its pages."""
    url = os.environ.get("PREFECT_API_URL")
    if url is None:
        return
    response = get(f"{url.rstrip('/').removesuffix('/api')}/ui-settings")
    settings = _json(response)
    api_url = settings.get("api_url") if isinstance(settings, dict) else None
    if not isinstance(api_url, str) or _same_server(api_url, url):
        return
    yield bad(
        "prefect UI",
        f"its pages query {api_url} instead of the server {url} and remain empty. Start it with"
        f" `PREFECT_SERVER_UI_API_URL={url} prefect server start`, or use `ratchet up`",
    )


def prefect_access(installation: Installation) -> Iterator[Check]:
    """Check that the server accepts the credentials and has the locally installed version."""
    url = os.environ.get("PREFECT_API_URL")
    if url is None:
        return
    secret = os.environ.get("PREFECT_API_AUTH_STRING")
    headers = {}
    if secret:
        headers["Authorization"] = f"Basic {b64encode(secret.encode()).decode()}"
    response = get(f"{url.rstrip('/')}/admin/version", headers)
    if response.status in (401, 403):
        problem = "rejects PREFECT_API_AUTH_STRING" if secret else "requires a password"
        advice = "`export PREFECT_API_AUTH_STRING=USER:PASSWORD`"
        yield bad("prefect access", f"{url} {problem}: {advice}")
    remote = _json(response)
    local = _installed_prefect()
    if isinstance(remote, str) and local is not None and remote != local:
        details = f"{url} runs Prefect {remote}, this machine has {local}"
        yield warning("prefect version", f"{details}: `pip install 'prefect=={remote}'`")


def _json(response: HealthResponse) -> object:
    """Return the JSON content of a successful response; None otherwise."""
    try:
        return json.loads(response.text) if response.status == 200 else None
    except ValueError:
        return None


def _same_server(one: str, other: str) -> bool:
    """Return whether two URLs lead to one server; relative URLs lead to the page's server."""
    if one.startswith("/"):
        return True
    first, second = urllib.parse.urlsplit(one), urllib.parse.urlsplit(other)
    loopback = {"localhost", "127.0.0.1", "0.0.0.0"}
    same_host = first.hostname == second.hostname or {first.hostname, second.hostname} <= loopback
    return same_host and first.port == second.port


def _installed_prefect() -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("prefect")
    except PackageNotFoundError:
        return None


_DATABASE = "PREFECT_SERVER_DATABASE_CONNECTION_URL"
_QUERY = """
select exists (select from pg_extension where extname = 'pg_trgm'),
       has_database_privilege(current_database(), 'CREATE')
"""


class _Extension(NamedTuple):
    exists: bool
    role_may_create_it: bool


def prefect_database(installation: Installation) -> Iterator[Check]:
    """Check that the PostgreSQL accepts connections and has Prefect's search extension."""
    url = os.environ.get(_DATABASE, "")
    if not url.startswith("postgresql"):
        return
    import asyncpg

    parts = urllib.parse.urlsplit(url)
    try:
        extension = asyncio.run(_query_extension(url.replace("+asyncpg", "", 1)))
    except (OSError, TimeoutError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as e:
        details = f"{_DATABASE}: cannot connect to {_address(parts)}: {e or type(e).__name__}"
        yield bad("database", f"{details}. Try it: `{_psql(parts)}`")
        return
    if extension.exists:
        yield good("database", f"{_address(parts)}, with pg_trgm")
        return
    command = f"`{_psql(parts, user='postgres')} -c 'create extension pg_trgm'`"
    details = f"{_address(parts)} lacks the extension pg_trgm"
    if extension.role_may_create_it:
        advice = "Prefect's server creates it at its start, or create it now"
        yield warning("database", f"{details}; {advice}: {command}")
    else:
        yield bad("database", f"{details}, and this role may not create it: {command}")


async def _query_extension(url: str) -> _Extension:
    import asyncpg

    connection = await asyncpg.connect(url, timeout=_SECONDS)
    try:
        return _Extension(*await connection.fetchrow(_QUERY, timeout=_SECONDS))
    finally:
        await connection.close(timeout=_SECONDS)


def _address(url: urllib.parse.SplitResult) -> str:
    """Return a database's address without the password that its URL may contain."""
    return f"{url.hostname or 'the local socket'}:{url.port or 5432}{url.path}"


def _psql(url: urllib.parse.SplitResult, user: str | None = None) -> str:
    host = f" -h {url.hostname}" if url.hostname else ""
    role = user or url.username
    name = f" -U {role}" if role else ""
    return f"psql{host} -p {url.port or 5432}{name} -d {url.path.lstrip('/')}"


_PICKLE = "MLFLOW_ALLOW_PICKLE_DESERIALIZATION"


def mlflow(installation: Installation) -> Iterator[Check]:
    """Check the MLflow of the environment, else the stack's, else the home's database.

    A server behind a proxy may lack the path ``/health`` or require a log-in.
    """
    chosen = os.environ.get("MLFLOW_TRACKING_URI")
    stack = running_stack(installation.home)
    database = (installation.home / "mlflow.db").resolve()
    if chosen and chosen.startswith(("http://", "https://")):
        source, page = "MLFLOW_TRACKING_URI", mlflow_page(chosen)
        yield from check_health(
            installation, "mlflow", chosen, source, page=page, accept_errors=True
        )
    elif chosen and (chosen.startswith("file:") or "://" not in chosen):
        details = f"MLFLOW_TRACKING_URI: {chosen} is a folder of files, which MLflow no longer"
        uri = f"sqlite:///{database}"
        yield bad("mlflow", f"{details} supports: `export MLFLOW_TRACKING_URI={uri}`")
    elif chosen:
        yield good("mlflow", f"MLFLOW_TRACKING_URI: {without_logins(chosen)}")
    elif stack is not None:
        url, source = stack.mlflow_url, "the local stack"
        yield from check_health(installation, "mlflow", url, source, page=mlflow_page(url))
    else:
        yield good("mlflow", f"no server: runs write to {installation.home / 'mlflow.db'}")
    if os.environ.get(_PICKLE, "false").lower() in ("1", "true"):
        details = f"{_PICKLE} is enabled: models may run code: `unset {_PICKLE}`"
        yield warning("mlflow pickles", details)


def mlflow_database(installation: Installation) -> Iterator[Check]:
    """Report a database of the home that MLflow cannot open: its creation was interrupted."""
    database = (installation.home / "mlflow.db").resolve()
    if is_unfinished(database):
        yield bad("mlflow database", unfinished_text(database))
