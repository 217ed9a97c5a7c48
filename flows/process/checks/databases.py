"""The PostgreSQL that Prefect's server is told to use: there, ours to enter, with its extension."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from flows.process.checks.base import Check, Places, bad, good, warning

_VARIABLE = "PREFECT_SERVER_DATABASE_CONNECTION_URL"
_SECONDS = 5.0
_QUESTION = """
select exists (select from pg_extension where extname = 'pg_trgm'),
       has_database_privilege(current_database(), 'CREATE')
"""


class _Extension(NamedTuple):
    is_there: bool
    role_may_make_it: bool


def prefect_database(places: Places) -> Iterator[Check]:
    """Check that a PostgreSQL can be entered, and has the extension that Prefect searches with."""
    url = os.environ.get(_VARIABLE, "")
    if not url.startswith("postgresql"):
        return
    import asyncpg

    parts = urlsplit(url)
    try:
        extension = asyncio.run(_ask(url.replace("+asyncpg", "", 1)))
    except (OSError, TimeoutError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as e:
        details = f"{_VARIABLE}: {_place(parts)} does not let us in: {e or type(e).__name__}"
        yield bad("database", f"{details}. Try it: `{_psql(parts)}`")
        return
    if extension.is_there:
        yield good("database", f"{_place(parts)}, with pg_trgm")
        return
    command = f"`{_psql(parts, user='postgres')} -c 'create extension pg_trgm'`"
    if extension.role_may_make_it:
        details = f"{_place(parts)} lacks the extension pg_trgm; Prefect's server makes it when it"
        yield warning("database", f"{details} starts, or make it now: {command}")
    else:
        details = f"{_place(parts)} lacks the extension pg_trgm, and this role may not make it"
        yield bad("database", f"{details}: {command}")


async def _ask(url: str) -> _Extension:
    import asyncpg

    connection = await asyncpg.connect(url, timeout=_SECONDS)
    try:
        return _Extension(*await connection.fetchrow(_QUESTION, timeout=_SECONDS))
    finally:
        await connection.close(timeout=_SECONDS)


def _place(url: SplitResult) -> str:
    """Name a database without the password that its URL may hold."""
    return f"{url.hostname or 'the local socket'}:{url.port or 5432}{url.path}"


def _psql(url: SplitResult, user: str | None = None) -> str:
    host = f" -h {url.hostname}" if url.hostname else ""
    role = user or url.username
    name = f" -U {role}" if role else ""
    return f"psql{host} -p {url.port or 5432}{name} -d {url.path.lstrip('/')}"
