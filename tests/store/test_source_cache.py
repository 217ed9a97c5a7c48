"""Facts of a source are the same after they have been stored and read from the cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.store import source_cache
from ratchet.store.sources import SourceFacts, read_facts

ROOT = Path(source_cache.__file__).parents[2]
EXAMPLE = b"""
import os
from .near import thing as other

class Example(Base):
    def method(self):
        return os.path.join(other.name, "text")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setattr(source_cache, "_folder", lambda: tmp_path / "sources")
    return tmp_path / "sources"


def fail(text: bytes) -> SourceFacts:
    raise AssertionError("it was parsed again")


def test_all_facts_of_the_project_survive_the_cache(folder: Path) -> None:
    for path in sorted((ROOT / "ratchet").rglob("*.py"))[::5]:
        text = path.read_bytes()
        first, second = source_cache._cached_facts(text), source_cache._cached_facts(text)
        assert first == second == read_facts(text)
    assert list(folder.glob("*.json"))


def test_a_source_is_parsed_once_and_again_after_an_edit(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = source_cache._cached_facts(EXAMPLE)
    edited = EXAMPLE.replace(b"text", b"other text")
    assert source_cache._cached_facts(edited).definitions != facts.definitions
    monkeypatch.setattr(source_cache, "read_facts", fail)
    assert source_cache._cached_facts(EXAMPLE) == facts
    with pytest.raises(AssertionError, match="parsed again"):
        source_cache._cached_facts(b"x = 1")


@pytest.mark.parametrize("content", [b"", b"{}", b'{"digest": "ab", "str'])
def test_a_damaged_file_is_replaced(folder: Path, content: bytes) -> None:
    facts = source_cache._cached_facts(EXAMPLE)
    (file,) = folder.iterdir()
    file.write_bytes(content)
    assert source_cache._cached_facts(EXAMPLE) == facts
    assert file.read_bytes() != content


def test_nothing_fails_without_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(source_cache, "_folder", lambda: tmp_path / "file" / "sources")
    assert source_cache._cached_facts(EXAMPLE) == read_facts(EXAMPLE)
    assert source_cache._cached_facts(b'x = "\\ud800"').strings == {"\ud800"}


def test_a_full_cache_starts_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_cache, "MAX_FILES", 3)
    for number in range(9):
        source_cache._cached_facts(f"x = {number}".encode())
    assert 1 <= len(list(folder.iterdir())) <= 4
