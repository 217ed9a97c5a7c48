"""Code fingerprints of plug-ins include the files that these import, wherever they lie."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ratchet.store.fingerprint import code_fingerprint


def test_a_plugin_counts_with_the_files_that_it_imports(
    plugin: Callable[..., type], tmp_path: Path
) -> None:
    text = (
        "import json\nfrom ratchet.errors import DataError\n"
        "class Mine:\n    def f(self):\n        import beside\n"
    )
    (tmp_path / "plugins").mkdir()
    beside = tmp_path / "plugins" / "beside.py"
    beside.write_text("x = 1\n")
    (tmp_path / "plugins" / "json.py").write_text("never imported: the name is the library's\n")
    before = code_fingerprint(plugin(text))
    assert set(before.modules) == {"mine", "beside"}
    beside.write_text("x = 22\n")
    assert code_fingerprint(plugin(text)).difference(before) == ["beside changed"]
    changed = code_fingerprint(plugin(text + "    y = 1\n"))
    assert changed.difference(before) == ["beside changed", "mine changed"]


def test_the_location_of_a_plugin_does_not_count(plugin: Callable[..., type]) -> None:
    text = "class Mine: ...\n"
    assert code_fingerprint(plugin(text)) == code_fingerprint(plugin(text, folder="moved"))


BY_DOTS = "from .beside import x\nclass Mine:\n    x = x\n"


def test_relative_imports_of_a_plugin_count(plugin: Callable[..., type], tmp_path: Path) -> None:
    plugin("class Mine: ...\n", name="unrelated")
    beside = tmp_path / "plugins" / "beside.py"
    beside.write_text("from . import json\nx = 1\n")
    (tmp_path / "plugins" / "json.py").write_text("no_librarys = 1\n")
    before = code_fingerprint(plugin(BY_DOTS))
    assert set(before.modules) == {"beside", "json", "mine"}
    beside.write_text("from . import json\nx = 22\n")
    assert code_fingerprint(plugin(BY_DOTS)).difference(before) == ["beside changed"]


def test_neighbours_of_one_name_in_two_folders_both_count(
    plugin: Callable[..., type], tmp_path: Path
) -> None:
    for number, folder in enumerate(["plugins", "other"]):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "beside.py").write_text(f"x = {number}\n")
    one, two = plugin(BY_DOTS), plugin(BY_DOTS, folder="other")
    both = code_fingerprint(one, two)
    assert set(both.modules) == {"beside", "beside#2", "mine", "mine#2"}
    assert code_fingerprint(one) != code_fingerprint(two)


def test_the_location_of_neighbours_does_not_count(
    plugin: Callable[..., type], tmp_path: Path
) -> None:
    for folder in ("plugins", "moved"):
        (tmp_path / folder / "parts").mkdir(parents=True)
        (tmp_path / folder / "beside.py").write_text("from .parts.one import x\n")
        (tmp_path / folder / "parts" / "one.py").write_text("x = 1\n")
    found = code_fingerprint(plugin(BY_DOTS))
    assert set(found.modules) == {"beside", "mine", "parts.one"}
    assert found == code_fingerprint(plugin(BY_DOTS, folder="moved"))


def test_a_file_imported_by_path_and_relatively_counts_once(plugin: Callable[..., type]) -> None:
    beside = plugin("class Mine: ...\nx = 1\n", name="beside")
    assert set(code_fingerprint(beside, plugin(BY_DOTS)).modules) == {"beside", "mine"}


def test_two_plugins_of_one_name_both_count(plugin: Callable[..., type]) -> None:
    one, two = plugin("class Mine: ...\n"), plugin("class Mine: x = 1\n", folder="other")
    both = code_fingerprint(one, two)
    assert set(both.modules) == {"mine", "mine#2"}
    assert both == code_fingerprint(two, one)
    assert both != code_fingerprint(one)


def test_bases_count_wherever_they_were_found(plugin: Callable[..., type]) -> None:
    base = plugin("class Mine: ...\n", name="base")
    derived = type("Derived", (base, dict), {"__module__": plugin("class Mine: ...\n").__module__})
    assert set(code_fingerprint(derived).modules) == {"base", "mine"}
