"""Lines appended with one write each, on disks that are full or broken."""

import os

import pytest

from ratchet.language_models import append_log
from ratchet.language_models.append_log import AppendLog


def test_a_torn_line_that_cannot_be_removed_is_ended_by_the_next_write(tmp_path, monkeypatch):
    log = AppendLog(tmp_path / "log")
    write = os.write

    def half(file, content):
        if len(content) < 4:
            raise OSError(28, "No space left on device")
        return write(file, content[:4])

    def broken(file, size):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(append_log.os, "write", half)
        patch.setattr(append_log.os, "ftruncate", broken)
        with pytest.raises(OSError, match="No space"):
            log.append(b"first")
    log.append(b"second")
    assert log.path.read_bytes() == b"firs\nsecond\n"
    assert log.read() == []


def test_closing_writes_through_to_the_disk(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(append_log.os, "fsync", synced.append)
    log = AppendLog(tmp_path / "log")
    log.append(b"line")
    assert synced == []
    log.close()
    assert len(synced) == 1
