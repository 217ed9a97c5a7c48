"""Lines appended with one write each, on disks that are full or broken."""

import fcntl
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


def test_a_torn_write_is_taken_back(tmp_path, monkeypatch):
    log = AppendLog(tmp_path / "log")
    log.append(b"first")
    write = os.write

    def half(file, content):
        if len(content) < 4:
            raise OSError(28, "No space left on device")
        return write(file, content[:4])

    with monkeypatch.context() as patch:
        patch.setattr(append_log.os, "write", half)
        with pytest.raises(OSError, match="No space"):
            log.append(b"second")
    assert log.path.read_bytes() == b"first\n"


def test_lines_kept_in_memory_are_written_once_and_in_order(tmp_path, monkeypatch):
    log = AppendLog(tmp_path / "log")

    def full(file, content):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(append_log.os, "write", full)
        log.append_or_buffer(b"first")
        log.append_or_buffer(b"second")
    assert (log.num_buffered, log.path.read_bytes()) == (2, b"")
    log.append(b"third")
    log.append(b"fourth")
    assert (log.num_buffered, log.path.read_bytes()) == (0, b"first\nsecond\nthird\nfourth\n")


def test_a_torn_line_of_another_process_is_ended(tmp_path):
    (tmp_path / "log").write_bytes(b"first\nsec")
    log = AppendLog(tmp_path / "log")
    assert log.read() == [b"first", b"sec"]
    log.append(b"third")
    log.append(b"fourth")
    assert log.path.read_bytes() == b"first\nsec\nthird\nfourth\n"


def test_one_process_at_a_time_has_the_file(tmp_path):
    log = AppendLog(tmp_path / "log")
    with open(tmp_path / "log", "rb") as other:
        with log.exclusive(), pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_closing_writes_through_to_the_disk(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(append_log.os, "fsync", synced.append)
    log = AppendLog(tmp_path / "log")
    log.append(b"line")
    assert synced == []
    log.close()
    assert len(synced) == 1
