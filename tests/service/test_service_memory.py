"""The service's process settings once its engine has started."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace

from ratchet.service.launch import ServiceAddress
from ratchet.service.serving import _announce, _watch


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


def test_the_address_is_printed_once_the_engine_has_started(capsys):
    address = ServiceAddress("http://127.0.0.1:41234/v1", 7, "my/model", "one")
    started, failed = Future(), Future()
    for ready in (started, failed):
        ready.add_done_callback(partial(_announce, address))
    failed.set_exception(OSError("no such folder"))
    assert capsys.readouterr().out == ""
    started.set_result(None)
    assert capsys.readouterr().out == "Serving my/model at http://127.0.0.1:41234/v1\n"
