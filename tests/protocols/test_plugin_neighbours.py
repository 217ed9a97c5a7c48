"""A user's file can use relative imports, and is reloaded when imported files change."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ratchet.errors import ParameterError
from ratchet.plugins import folder_package, load_class, load_module, module_name, plugin_label

TRAINER = "from .algorithm import gain\n\nclass Mine:\n    gain = gain\n"


@pytest.fixture
def write(tmp_path: Path):
    def write(name: str, text: str) -> Path:
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text(text)
        return file

    return write


def test_a_neighbour_is_imported_by_dots(write) -> None:
    write("algorithm.py", "from . import numbers_\ngain = numbers_.GAIN\n")
    write("numbers_.py", "GAIN = 2\n")
    found = load_class(f"{write('my trainer.py', TRAINER)}:Mine")
    assert found.gain == 2
    assert plugin_label(found.__module__) == "my_trainer"


def test_a_file_reached_twice_is_one_module(write) -> None:
    beside = write("algorithm.py", "class Gain: ...\ngain = Gain\n")
    by_dots = load_class(f"{write('trainer.py', TRAINER)}:Mine").gain
    assert by_dots is load_class(f"{beside}:Gain")
    assert by_dots.__module__ == module_name(beside)
    other = load_class(f"{write('other.py', TRAINER)}:Mine")
    assert other.gain is by_dots


def test_the_first_to_be_reached_may_be_the_neighbour(write) -> None:
    beside = write("algorithm.py", "class Gain: ...\ngain = Gain\n")
    by_path = load_class(f"{beside}:Gain")
    assert load_class(f"{write('trainer.py', TRAINER)}:Mine").gain is by_path


def test_a_changed_neighbour_is_loaded_anew_with_what_stands_on_it(write) -> None:
    write("numbers_.py", "GAIN = 2\n")
    write("algorithm.py", "from .numbers_ import GAIN\ngain = GAIN\n")
    unconcerned = write("unconcerned.py", "class Same: ...\n")
    trainer = write("trainer.py", TRAINER)
    before, same = load_class(f"{trainer}:Mine"), load_class(f"{unconcerned}:Same")
    assert load_class(f"{trainer}:Mine") is before
    write("numbers_.py", "GAIN = 3\n")
    after = load_class(f"{trainer}:Mine")
    assert (before.gain, after.gain) == (2, 3)
    assert load_class(f"{unconcerned}:Same") is same


def test_two_folders_have_each_their_own_neighbours(write) -> None:
    for number, folder in enumerate("ab"):
        write(f"{folder}/algorithm.py", f"gain = {number}\n")
    files = [write(f"{folder}/trainer.py", TRAINER) for folder in "ab"]
    assert [load_class(f"{file}:Mine").gain for file in files] == [0, 1]


def test_neighbours_may_import_one_another(write) -> None:
    write("algorithm.py", "gain = 4\nfrom .trainer import later\n")
    trainer = write("trainer.py", "later = 1\n" + TRAINER)
    assert load_class(f"{trainer}:Mine").gain == 4
    assert load_module(trainer.with_name("algorithm.py")).later == 1


def test_folders_beside_are_imported_too(write) -> None:
    write("parts/__init__.py", "")
    write("parts/one.py", "from .two import gain\n")
    write("parts/two.py", "gain = 5\n")
    trainer = write("trainer.py", TRAINER.replace(".algorithm", ".parts.one"))
    assert load_class(f"{trainer}:Mine").gain == 5


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("from .absent import x", "no absent.py in {folder}"),
        ("from . import absent", "cannot import name 'absent'"),
        ("from ..above import x", "refer to its folder, {folder}"),
        ("from .broken import x", "broken.py: importing it failed with SyntaxError"),
    ],
)
def test_what_cannot_be_imported_is_said(write, tmp_path: Path, line: str, said: str) -> None:
    write("broken.py", "def f(:\n")
    trainer = write("trainer.py", line + "\n")
    with pytest.raises(ParameterError) as error:
        load_module(trainer)
    assert said.format(folder=tmp_path) in str(error.value)
    package = folder_package(tmp_path)
    assert module_name(trainer) not in sys.modules
    assert f"{package}.trainer" not in sys.modules
    trainer.write_text("class Fine: ...\n")
    assert load_class(f"{trainer}:Fine").__name__ == "Fine"
