"""The service's process settings once its engine has started."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import Future
from types import SimpleNamespace

from ratchet.service.serving import _watch


def test_what_is_loaded_is_exempt_from_garbage_collection():
    ready, leave = Future(), threading.Event()
    server = SimpleNamespace(should_exit=False)
    _watch(server, SimpleNamespace(batcher=SimpleNamespace(ready=ready)), leave)
    gc.unfreeze()
    ready.set_result(None)
    frozen = gc.get_freeze_count()
    gc.unfreeze()
    leave.set()
    assert frozen > 0
