"""Files that are opened for reading are noted, also in child processes."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import ratchet
from ratchet.file_reads import noted_reads

ROOT = Path(ratchet.__file__).parents[1]


@pytest.fixture
def folder(tmp_path):
    for name in ("a.txt", "b.txt", "c.txt"):
        (tmp_path / "inner" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "inner" / name).write_text(name)
    return tmp_path / "inner"


def names(reads):
    return {Path(path).name for path in reads}


def read(path):
    return Path(path).read_text()


def test_files_that_are_read_in_the_block_are_noted(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder.parent / "outside.txt").write_text("")
    with noted_reads(str(folder)) as reads:
        read("a.txt")
        os.close(os.open(os.fsencode(folder / "b.txt"), os.O_RDONLY))
        os.close(os.open(folder, os.O_RDONLY))
        read(folder.parent / "outside.txt")
        with pytest.raises(FileNotFoundError):
            read("missing.txt")
    read("c.txt")
    assert names(reads) == {"a.txt", "b.txt"}
    assert reads[str(folder / "a.txt")].size == len("a.txt")


def test_a_file_that_the_block_writes_first_is_left_out(folder):
    with noted_reads(str(folder)) as reads:
        for mode in ("w", "x"):
            path = folder / f"written-{mode}"
            with path.open(mode):
                pass
            read(path)
        with (folder / "a.txt").open("a"):
            pass
        read(folder / "a.txt")
        with (folder / "b.txt").open("r+"):
            pass
    assert names(reads) == {"a.txt", "b.txt"}


def test_reads_of_threads_and_nested_blocks_are_noted(folder):
    with noted_reads(str(folder)) as outer:
        with noted_reads() as inner:
            thread = threading.Thread(target=read, args=(folder / "a.txt",))
            thread.start()
            thread.join()
        read(folder / "b.txt")
    assert names(outer) == {"a.txt", "b.txt"}
    assert "a.txt" in names(inner)
    assert "b.txt" not in names(inner)


def read_on_request(connection):
    while (path := connection.recv()) is not None:
        connection.send(read(path))


def in_child(connection, path):
    connection.send(path)
    assert connection.recv() == Path(path).name


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_reads_of_a_worker_process_are_noted_in_each_block(folder, method):
    context = multiprocessing.get_context(method)
    here, there = context.Pipe()
    with noted_reads(str(folder)) as first:
        process = context.Process(target=read_on_request, args=(there,))
        process.start()
        in_child(here, folder / "a.txt")
        in_child(here, folder / "a.txt")
    in_child(here, folder / "c.txt")
    with noted_reads(str(folder)) as second:
        in_child(here, folder / "a.txt")
        in_child(here, folder / "b.txt")
    here.send(None)
    process.join()
    assert process.exitcode == 0
    assert names(first) == {"a.txt"}
    assert names(second) == {"a.txt", "b.txt"}


def test_reads_of_a_started_program_are_noted(folder):
    code = f"import ratchet; open({str(folder / 'a.txt')!r}).read()"
    with noted_reads(str(folder)) as reads:
        subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
    assert names(reads) == {"a.txt"}


def test_the_log_is_removed_at_exit_and_errors_of_open_stay(folder, tmp_path):
    code = f"""
import os, tempfile
from ratchet.file_reads import noted_reads
with noted_reads({str(folder)!r}):
    for path in ("\\0", 10**6, b"missing"):
        try:
            open(path)
        except (OSError, ValueError) as error:
            print(type(error).__name__)
    print(len(os.listdir(tempfile.gettempdir())))
"""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    assert done.stdout.split() == ["ValueError", "OSError", "FileNotFoundError", "1"]
    assert list(temporary.iterdir()) == []


def test_no_variable_vanishes_while_another_thread_copies_the_environment(folder):
    with noted_reads(str(folder)):
        names_before = list(os.environ)
    assert [name for name in names_before if name not in os.environ] == []
