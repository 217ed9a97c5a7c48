"""``served``: a model that learns, as it is now, at a service that chats."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.language_models.endpoints import ModelAddress
from ratchet.language_models.service.launch import EmbeddedService

if TYPE_CHECKING:
    from trainers.language.base import BaseTrainer

_TEMPLATE_FILE = "chat_template.jinja"
_PLAIN_TEXT = "{%- for message in messages -%}{{- message['content'] -}}{%- endfor -%}"
_END_SECONDS = 10.0


@contextmanager
def served(learner: BaseTrainer, *, chat: bool) -> Iterator[ModelAddress]:
    """Have the model answer at a service while the block lasts.

    One that is in this process is served by a service of its own, of which nothing is left
    afterwards. Without ``chat`` it reads messages as plain text, as in training.
    """
    there = learner.address()
    if there is not None:
        yield there
        return
    with tempfile.TemporaryDirectory(prefix="ratchet-served-", ignore_cleanup_errors=True) as name:
        home = Path(name)
        folder = home / "model"
        learner.save_whole_model(folder)
        if not chat:
            (folder / _TEMPLATE_FILE).write_text(_PLAIN_TEXT, encoding="utf-8")
        with EmbeddedService.start(home, model=str(folder)) as service:
            try:
                yield ModelAddress(service.url, service.model)
            finally:
                _end(service.pid)


def _end(pid: int) -> None:
    """End a service that nobody else knows of, before its folder goes."""
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + _END_SECONDS
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
