"""Reading of sources, with a cache of facts that later processes load instead of parsing again.

Parsing the project's sources takes a CPU-second and a half in each process that computes keys. The
files are in ``$XDG_CACHE_HOME/ratchet/sources`` (``~/.cache``), by the SHA-256 of the source and of
the code that reads it, so none is ever out of date.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import psutil
from pydantic import TypeAdapter

from ratchet.errors import StageKeyError
from ratchet.store.locks import user_cache
from ratchet.store.sources import Source, SourceFacts, read_facts

MAX_FILES = 4_000
"""The cache starts over when it has more files: some twenty versions of the project."""
MAX_AGE = 30 * 24 * 3600.0
"""Facts read by other versions of the code are removed after this time, in seconds."""
_READERS = ("store/source_cache.py", "store/sources.py", "lazy.py", "syntax.py")


_BY_STAMP: dict[Path, tuple[tuple[int, ...], SourceFacts]] = {}
_BY_SPEC: dict[Path, tuple[object, SourceFacts]] = {}


def read_source(source: Source) -> SourceFacts:
    """Read a source file, or return the facts from an earlier call.

    A file is read again when its times or size change. After a module is loaded and read, its facts
    stay until it is loaded again: the running code counts, not later edits.
    """
    spec = getattr(sys.modules.get(source.module), "__spec__", None)
    if spec is None or getattr(spec, "origin", None) != str(source.path):
        return _read_current(source.path)
    cached = _BY_SPEC.get(source.path)
    if cached is None or cached[0] is not spec:
        cached = _BY_SPEC[source.path] = (spec, _read_current(source.path))
    return cached[1]


def _read_current(path: Path) -> SourceFacts:
    try:
        status = os.stat(path)
        stamp = (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)
        cached = _BY_STAMP.get(path)
        if cached is None or cached[0] != stamp:
            cached = _BY_STAMP[path] = (stamp, _cached_facts(path.read_bytes()))
    except (OSError, SyntaxError, ValueError) as error:
        raise StageKeyError(
            f"code fingerprint: cannot read {path} as Python: {error}. Without it the stage has no"
            " key; correct the file."
        ) from error
    return cached[1]


def _cached_facts(text: bytes) -> SourceFacts:
    """Return the facts of a source text from the cache folder, or read and add them."""
    folder = _folder()
    if folder is None:
        return read_facts(text)
    path = folder / f"{hashlib.sha256(text).hexdigest()}.json"
    with contextlib.suppress(OSError, ValueError):  # missing or damaged
        return _adapter().validate_json(path.read_bytes())
    facts = read_facts(text)
    with contextlib.suppress(OSError, ValueError):  # no writable cache; texts that JSON has not
        _write(path, _adapter().dump_json(facts))
    return facts


def _write(path: Path, content: bytes) -> None:
    """Write a file under a temporary name and rename it into place."""
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True)
        for version in path.parent.parent.iterdir():
            if time.time() - version.stat().st_mtime > MAX_AGE:
                shutil.rmtree(version, ignore_errors=True)
    if len(os.listdir(path.parent)) > MAX_FILES:
        shutil.rmtree(path.parent, ignore_errors=True)
        path.parent.mkdir(exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            file.write(content)
        except OSError:
            os.unlink(file.name)
            raise
    os.replace(file.name, path)


@functools.cache
def _adapter() -> TypeAdapter[SourceFacts]:
    return TypeAdapter(SourceFacts)


@functools.cache
def _folder() -> Path | None:
    """Return the folder for this version of Python and of the code that reads sources.

    None if that code was edited after this process started, which may run the code before.
    """
    readers = [Path(__file__).resolve().parent.parent / name for name in _READERS]
    started = psutil.Process().create_time()
    if any(max(os.stat(file).st_mtime, os.stat(file).st_ctime) >= started for file in readers):
        return None
    code = b"".join(file.read_bytes() for file in readers)
    version = hashlib.sha256(code + sys.version.encode()).hexdigest()[:16]
    return user_cache() / "sources" / version
