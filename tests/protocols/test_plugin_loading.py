"""Classes are loaded from users' files by path, and each failure reports a remedy."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ratchet.errors import ParameterError, UnknownNameError
from ratchet.plugins import is_class_spec, load_class, load_module, module_name, plugin_label


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    file = tmp_path / "my trainer.py"
    file.write_text("class Mine(dict):\n    size = 1\n\nnumber = 3\n")
    return file


def test_a_class_is_loaded_once_relative_or_absolute(plugin: Path, monkeypatch) -> None:
    by_base = load_class("my trainer.py:Mine", plugin.parent)
    assert by_base is load_class(f"{plugin}:Mine", base=dict)
    monkeypatch.chdir(plugin.parent)
    assert by_base is load_class("my trainer.py:Mine")
    assert by_base is load_class("../" + plugin.parent.name + "/my trainer.py:Mine")
    assert sys.modules[by_base.__module__].__file__ == str(plugin)


def test_the_module_name_is_of_the_path_and_not_of_the_content(plugin: Path) -> None:
    before = load_class(f"{plugin}:Mine")
    plugin.write_text(plugin.read_text().replace("size = 1", "size = 2"))  # the same length
    after = load_class(f"{plugin}:Mine")
    assert (before.size, after.size) == (1, 2)
    assert before.__module__ == after.__module__ == module_name(plugin)
    assert plugin_label(after.__module__) == "my_trainer"
    assert plugin_label("ratchet.errors") is None


def test_files_of_one_name_in_two_folders_are_two_modules(tmp_path: Path) -> None:
    for folder in "ab":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.py").write_text(f"class C:\n    place = {folder!r}\n")
    places = [load_class("same.py:C", tmp_path / folder).place for folder in "ab"]
    assert places == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "is_spec"),
    [("nip", False), ("a/b.py:C", True), ("b.py", False), ("pkg.mod:C", False), (":C", False)],
)
def test_a_spec_is_told_from_a_name(text: str, is_spec: bool) -> None:
    assert is_class_spec(text) == is_spec


def test_what_is_wrong_is_said(plugin: Path) -> None:
    folder = plugin.parent
    with pytest.raises(ParameterError, match=r"'Mine', expected 'path/to/file.py:ClassName'"):
        load_class("Mine", folder)
    with pytest.raises(ParameterError, match=r"no file .*absent\.py.*start from"):
        load_class("absent.py:Mine", folder)
    with pytest.raises(UnknownNameError, match=r"no class 'Min'. Did you mean 'Mine'"):
        load_class("my trainer.py:Min", folder)
    with pytest.raises(ParameterError, match="'number' is 3, expected a class"):
        load_class("my trainer.py:number", folder)
    with pytest.raises(ParameterError, match=r"bases \['dict'\], expected a subclass of .*list"):
        load_class("my trainer.py:Mine", folder, base=list)


@pytest.mark.parametrize(
    ("source", "said"),
    [("import not_there_at_all\n", "not_there_at_all"), ("def f(:\n", "SyntaxError")],
)
def test_a_file_that_cannot_be_imported_says_why(tmp_path: Path, source: str, said: str) -> None:
    file = tmp_path / "broken.py"
    file.write_text(source)
    with pytest.raises(ParameterError, match=said):
        load_module(file)
    assert module_name(file) not in sys.modules


def test_an_error_of_the_file_travels_with_a_note_and_leaves_nothing(tmp_path: Path) -> None:
    file = tmp_path / "raises.py"
    file.write_text("1 / 0\n")
    with pytest.raises(ZeroDivisionError) as error:
        load_module(file)
    assert str(file) in error.value.__notes__[0]
    assert module_name(file) not in sys.modules
    file.write_text("class Fine: ...\n")
    assert load_class("raises.py:Fine", tmp_path).__name__ == "Fine"
