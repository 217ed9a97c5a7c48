"""Files that custom code of a stage reads although no key contains them.

A stage's folder contains their names, relative to the experiment's folder, and digests
(:data:`NOTED_FILE`), only if there are some. Files whose content is in the key are left out, and so
are those that Ratchet's parameters name, and that Ratchet, libraries and hidden folders contain.
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import source_from_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from ratchet.errors import StageKeyError
from ratchet.file_reads import Stamp, noted_reads
from ratchet.plugins import READ_ON_IMPORT
from ratchet.shadowing import ROOT
from ratchet.store.closure import PROJECT_PACKAGES, is_project
from ratchet.store.local import hash_file
from ratchet.store.module_files import is_library
from ratchet.store.source_cache import read_source
from ratchet.store.sources import Source

if TYPE_CHECKING:
    from ratchet.store.manifest import Manifest
    from ratchet.store.store import StageStore
    from tasks.stages.calls import StageCall
    from tasks.stages.keys import BaseKeys
    from tasks.stages.session import BaseSession

NOTED_FILE = "undeclared_files.json"
NotedFiles = Mapping[str, str | None]
"""Digests by name; None for a file that changed while the stage was computed."""
_is_digest = re.compile(r"[0-9a-f]{64}").fullmatch
_IGNORED_FOLDERS = ("mlruns", "mlartifacts")
"""Folders of MLflow, which may be outside Ratchet's folders."""


@contextmanager
def noted_files(call: StageCall, session: BaseSession, folder: Path) -> Iterator[None]:
    """Write the undeclared files that the block reads into a stage's folder.

    Without effect if the stage runs no custom code. The session may end the noting earlier.
    """
    if call.fingerprint.digest not in session.keys.custom_code:
        yield
        return
    inner = os.path.join(session.keys.folder.resolve(), "")
    with ExitStack() as session.noting:
        session.noted = in_stage = session.noting.enter_context(noted_reads(inner))
        yield
    reads = dict(in_stage)
    for plugin in session.keys.code.facts:
        on_import = READ_ON_IMPORT.get(plugin, {})
        reads |= {path: on_import[path] for path in on_import if path.startswith(inner)}
    if reads and (files := _undeclared(reads, call, session)):
        text = json.dumps({"files": files}, indent=1, sort_keys=True)
        (folder / NOTED_FILE).write_text(f"{text}\n")


def read_noted_files(store: StageStore, manifest: Manifest) -> NotedFiles:
    """Return the undeclared files that a stored stage has read."""
    text = store.read_file(manifest, NOTED_FILE)
    try:
        files: NotedFiles = {} if text is None else json.loads(text)["files"]
    except ValueError:
        return {}  # damaged, which is reported when the stage is used
    return files


def changed_files(noted: NotedFiles, folder: Path) -> list[str]:
    """Return the noted files that differ from those in a folder, or are missing there."""
    return [name for name, digest in noted.items() if _current_digest(folder / name) != digest]


def _undeclared(
    reads: Mapping[str, Stamp], call: StageCall, session: BaseSession
) -> dict[str, str | None]:
    keys, folder = session.keys, session.keys.folder.resolve()
    in_keys = {*_files_in_key(call), *_files_in_key(keys.build_scenario())}
    sources = set(call.fingerprint.modules.values())
    settings = session.settings
    # do not affect results
    in_settings = (settings.runs, settings.home, settings.store_url, settings.prices)
    paths = [Path(path).resolve() for path in in_settings if path is not None]
    paths += [*_paths_of_parameters(keys), Path(sys.prefix)]
    excluded = [each for each in paths if not folder.is_relative_to(each)]
    excluded += [ROOT / name for name in PROJECT_PACKAGES]
    files: dict[str, str | None] = {}
    for opened, stamp in reads.items():
        path = _source(Path(opened))
        if _is_ignored(path, folder) or any(path.is_relative_to(each) for each in excluded):
            continue
        current, digest = _stamp(path), _current_digest(path)
        if current is None or digest is None:
            continue
        is_code = path.suffix == ".py"
        is_source = is_code and digest in sources
        if not is_source and (path.name, _content_digest(path, current)) not in in_keys:
            has_changed = not is_code and stamp != current
            files[path.relative_to(folder).as_posix()] = None if has_changed else digest
    return files


def _files_in_key(call: StageCall) -> Iterator[tuple[str, str]]:
    """Iterate over the files whose content the key of a stage contains: name and digest."""
    labels = {label.removeprefix("file "): d for label, d in call.fingerprint.modules.items()}
    digests = [*labels.items(), *(each for each in _texts(call.parameters) if _is_digest(each[1]))]
    for label, digest in digests:
        yield PurePosixPath(label.partition("#")[0]).name, digest


def _texts(data: object, name: str = "") -> Iterator[tuple[str, str]]:
    """Iterate over the texts in plain data, each with its name in the innermost mapping."""
    if isinstance(data, str):
        yield name, data
    elif isinstance(data, Mapping):
        for inner, each in data.items():
            yield from _texts(each, inner)
    elif isinstance(data, list | tuple):
        for each in data:
            yield from _texts(each, name)


def _paths_of_parameters(keys: BaseKeys) -> Iterator[Path]:
    """Iterate over existing paths that Ratchet's parameters name: keys contain their content.

    Custom code reads those in its parameters, and of the dataset of a custom scenario.
    """
    for name, value in keys.hyper_params.to_dict().items():
        section = getattr(keys.hyper_params, name)
        reader = type(keys.scenario) if name == "dataset" else type(section)
        if name == "files" or (
            reader.__module__ != "builtins" and not is_project(reader.__module__)
        ):
            continue
        for _, text in _texts(value):
            for each in {text, text.partition(":")[2]} - {""}:
                path = keys.folder / Path(each).expanduser()
                if os.path.exists(path):
                    yield path.resolve()


def _is_ignored(path: Path, folder: Path) -> bool:
    if not path.is_relative_to(folder) or is_library(path):
        return True
    parts = path.relative_to(folder).parts
    main = getattr(sys.modules["__main__"], "__file__", None)
    return (
        any(part.startswith(".") or part in _IGNORED_FOLDERS for part in parts)
        or path.suffix == ".pyc"
        or (main is not None and path == Path(main).resolve())
    )


def _source(path: Path) -> Path:
    """Return the source of bytecode; other paths unchanged."""
    try:
        return Path(source_from_cache(path)) if path.suffix == ".pyc" else path
    except ValueError:  # not compiled by Python's import
        return path


def _stamp(path: Path) -> Stamp | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return Stamp(status.st_mtime_ns, status.st_size)


def _current_digest(path: Path) -> str | None:
    """Return the digest of a file as in code fingerprints; None without such a file."""
    stamp = _stamp(path)
    if stamp is None:
        return None
    with suppress(StageKeyError):  # not Python
        if path.suffix == ".py":
            return read_source(Source(path, "", path.stem)).digest
    return _content_digest(path, stamp)


@functools.lru_cache(maxsize=100_000)
def _content_digest(path: Path, stamp: Stamp) -> str:
    """Return the SHA-256 of a file, computed once for each ``stamp``."""
    return hash_file(path)
