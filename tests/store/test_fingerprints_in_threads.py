"""Threads that compute keys of one run at the same time compute the same ones."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from ratchet.models.master_weights import MasterWeights
from ratchet.rollouts.batch import Batch
from ratchet.store import closure, fingerprint
from ratchet.store.fingerprint import Fingerprint, code_fingerprint


def test_code_that_another_thread_is_following_is_not_used_before_it_is_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = code_fingerprint(MasterWeights, Batch, closure.Closure)
    fingerprint._PROJECT_DIGESTS.clear()
    code, follow = closure.KnownCode(), closure.Closure.follow
    fingerprints: list[Fingerprint] = []

    def compute() -> None:
        shared: tuple[Callable[..., object], ...] = (MasterWeights, Batch)
        fingerprints.append(code_fingerprint(closure.Closure, shared=shared, code=code))

    second = threading.Thread(target=compute)

    def follow_beside_the_second(self: closure.Closure) -> None:
        if second.ident is None:
            second.start()
            second.join(timeout=1)  # it ends immediately unless it waits for this thread
        follow(self)

    monkeypatch.setattr(closure.Closure, "follow", follow_beside_the_second)
    compute()
    second.join()
    assert fingerprints == [expected, expected]
