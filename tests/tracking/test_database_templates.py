"""A new database is a copy of the machine's template, complete or absent."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest

from ratchet.tracking.database_templates import copy_template


class Migration:
    """Creates a table in a database with a write-ahead log that is not yet merged."""

    def __init__(self):
        self.calls = 0
        self.connection = None

    def __call__(self, path):
        self.calls += 1
        self.connection = sqlite3.connect(path)
        self.connection.execute("pragma journal_mode = wal")
        self.connection.execute("create table runs (id integer)")


def tables(path):
    with contextlib.closing(sqlite3.connect(path)) as database:
        return [name for (name,) in database.execute("select name from sqlite_master")]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ratchet" / "databases"


def test_migrations_run_once_per_machine_and_version(cache, tmp_path):
    migrate = Migration()
    for name, folder in (("a-1", "one"), ("a-1", "two"), ("a-2", "three")):
        copy_template(name, tmp_path / folder / "a.db", migrate)
        assert tables(tmp_path / folder / "a.db") == ["runs"]
    assert migrate.calls == 2
    assert {path.name for path in cache.glob("*.db")} == {"a-1.db", "a-2.db"}


def test_an_existing_database_is_not_replaced(cache, tmp_path):
    (tmp_path / "a.db").write_text("mine")
    copy_template("a-1", tmp_path / "a.db", Migration())
    assert (tmp_path / "a.db").read_text() == "mine"


def test_an_interrupted_copy_leaves_no_database(cache, tmp_path):
    def fail(path):
        assert tables(path) == ["runs"]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy_template("a-1", tmp_path / "a.db", Migration(), fail)
    assert not (tmp_path / "a.db").exists()
    copy_template("a-1", tmp_path / "a.db", Migration())
    assert tables(tmp_path / "a.db") == ["runs"]
    assert not list(tmp_path.glob("*.new*"))


def test_an_interrupted_migration_leaves_no_template(cache, tmp_path):
    def fail(path):
        path.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy_template("a-1", tmp_path / "a.db", fail)
    copy_template("a-1", tmp_path / "a.db", Migration())
    assert tables(tmp_path / "a.db") == ["runs"]


def test_without_a_cache_the_database_is_migrated_in_place(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    copy_template("a-1", tmp_path / "a.db", Migration())
    assert tables(tmp_path / "a.db") == ["runs"]
