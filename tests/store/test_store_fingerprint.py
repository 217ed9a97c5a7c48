"""The code fingerprint: what the class stands on counts, and nothing else.

The project's packages are stood in for by copies in a temporary folder, so that they can be
edited.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

import ratchet.store.closure as closure
from ratchet.errors import StageKeyError
from ratchet.plugins import load_class
from ratchet.store.fingerprint import Fingerprint, code_fingerprint
from ratchet.store.sources import read_facts
from ratchet.store.store import StageStore

FILES = {
    "ratchet/__init__.py": '_HOMES = {"Store": "ratchet.store"}\n',
    "ratchet/errors.py": "class Error(Exception): ...\n",
    "ratchet/store.py": "import json\nclass Store: ...\n",
    "ratchet/typing_only.py": "Kind = int\n",
    "ratchet/elsewhere.py": "x = 1\n",
    "ratchet/protocols/__init__.py": (
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from ratchet.protocols.base import Handler\n"
        '_HOMES = {"Handler": "ratchet.protocols.base", "Other": "ratchet.protocols.other"}\n'
    ),
    "ratchet/protocols/base.py": "from ..errors import Error\nclass Handler: ...\n",
    "ratchet/protocols/other.py": "class Other: ...\n",
    "ratchet/protocols/third.py": "class Third: ...\n",
    "trainers/__init__.py": "from trainers.base import Trainer\n",
    "trainers/base.py": "class Trainer: ...\n",
    "trainers/losses.py": "def loss(x):\n    return x * 2\n",
    "trainers/late.py": "y = 2\n",
    "trainers/ppo.py": (
        "from __future__ import annotations\n"
        "import torch\n"
        "from typing import TYPE_CHECKING\n"
        "from ratchet.protocols import Handler\n"
        "from trainers import Trainer, losses\n"
        "if TYPE_CHECKING:\n    from ratchet.typing_only import Kind\n"
        "class Ppo(Trainer):\n"
        "    def train(self) -> Kind:\n"
        "        from ratchet import Store\n"
        "        import importlib\n"
        '        importlib.import_module("trainers.late")\n'
    ),
}
EXPECTED = {
    "ratchet.errors",
    "ratchet.protocols.base",
    "ratchet.store",
    "trainers.base",
    "trainers.late",
    "trainers.losses",
    "trainers.ppo",
}


class Project:
    """Packages in a folder; ``module`` stands for one that was imported from there."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.monkeypatch = monkeypatch
        for name, text in FILES.items():
            self.write(name, text)
        folders = {name: (root / name,) for name in ("ratchet", "trainers")}
        monkeypatch.setattr(closure, "_project_folders", lambda: folders)

    def write(self, name: str, text: str) -> None:
        """Write a file anew, with another inode, as editors do."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(".new")
        scratch.write_text(text)
        scratch.replace(path)

    def add(self, name: str, text: str) -> None:
        """Add text to a file's end."""
        self.write(name, (self.root / name).read_text() + text)

    def module(self, name: str) -> ModuleType:
        module = ModuleType(name)
        base = self.root.joinpath(*name.split("."))
        file = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
        module.__file__ = str(file)
        self.monkeypatch.setitem(sys.modules, name, module)
        return module

    def fingerprint(self, name: str = "trainers.ppo") -> Fingerprint:
        return code_fingerprint(self.module(name))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    return Project(tmp_path / "project", monkeypatch)


def test_the_closure_is_what_is_imported_and_no_more(project: Project) -> None:
    assert set(project.fingerprint().modules) == EXPECTED


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_code_below_the_class_counts(project: Project, name: str) -> None:
    before = project.fingerprint()
    project.add(name.replace(".", "/") + ".py", "z = 3\n")
    after = project.fingerprint()
    assert after.digest != before.digest
    assert after.difference(before) == [f"{name} changed"]


@pytest.mark.parametrize(
    "name",
    ["ratchet/elsewhere.py", "ratchet/protocols/other.py", "ratchet/protocols/third.py",
     "ratchet/typing_only.py", "ratchet/__init__.py", "trainers/__init__.py"],
)  # fmt: skip
def test_code_elsewhere_does_not_count(project: Project, name: str) -> None:
    before = project.fingerprint()
    project.add(name, "z = 3\n")
    assert project.fingerprint() == before


def test_a_new_import_and_a_lost_one_are_named(project: Project) -> None:
    before = project.fingerprint()
    project.write(
        "trainers/losses.py", "import ratchet.elsewhere\ndef loss(x):\n    return x * 2\n"
    )
    project.write("ratchet/protocols/base.py", "class Handler: ...\n")
    assert project.fingerprint().difference(before) == [
        "ratchet.elsewhere added",
        "ratchet.errors removed",
        "ratchet.protocols.base changed",
        "trainers.losses changed",
    ]


def test_a_package_asked_by_attribute_brings_what_is_asked(project: Project) -> None:
    project.write("trainers/late.py", "import ratchet.protocols as p\nh = p.Other\n")
    found = set(project.fingerprint("trainers.late").modules)
    assert found == {"trainers.late", "ratchet.protocols", "ratchet.protocols.other"}


@pytest.mark.parametrize(
    "line", ["from ratchet.protocols import *", "from ratchet.protocols import q"]
)
def test_what_can_not_be_told_brings_everything(project: Project, line: str) -> None:
    project.write("trainers/late.py", line + "\n")
    found = set(project.fingerprint("trainers.late").modules)
    assert found >= {"ratchet.protocols.base", "ratchet.protocols.other", "ratchet.errors"}


def test_circular_imports_come_to_an_end(project: Project) -> None:
    project.write("ratchet/errors.py", "import ratchet.protocols.base\nimport trainers.ppo\n")
    project.write("trainers/__init__.py", "from trainers import Trainer\n")
    assert set(project.fingerprint("ratchet.errors").modules) >= EXPECTED - {"trainers.base"}


def test_the_place_of_the_project_does_not_count(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = project.fingerprint()
    assert Project(tmp_path / "moved", monkeypatch).fingerprint() == before


def test_an_unreadable_file_fails_the_key(project: Project) -> None:
    project.write("trainers/losses.py", "def loss(x:\n")
    with pytest.raises(StageKeyError, match=r"losses\.py can't be read as Python"):
        project.fingerprint()


BASE = 'import a\nclass C(B):\n    x: int = 1\n    def f(self, y):\n        return (y + "ab", 1)\n'


@pytest.mark.parametrize(
    "text",
    [
        BASE.replace("import a", '"""Doc."""\nimport a'),
        BASE.replace("class C(B):\n", 'class C(B):\n    """Doc."""\n\n'),
        BASE.replace("int = 1\n", 'int = 1\n    """What x is."""\n'),
        BASE.replace("(self, y):\n", '(self, y):  # why\n        """Do."""\n'),
        BASE.replace('"ab"', '"a" "b"').replace("y + ", "\n            y +\n "),
        BASE.replace('"ab"', "'ab'"),
        BASE.replace("import a\n", "import a\nif TYPE_CHECKING:\n    import b\n"),
        BASE.replace("import a\n", "if t.TYPE_CHECKING:\n    import b\nelse:\n    import a\n"),
    ],
)
def test_looks_do_not_count(text: str) -> None:
    assert read_facts(text.encode()).digest == read_facts(BASE.encode()).digest


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("ab", "ac"),
        ("1)", "1.0)"),
        ("1)", "True)"),
        ("y + ", "y - "),
        ("int = 1", "int = 2"),
        ("int = 1", "float = 1"),
        ("(self, y)", "(self, y=None)"),
        ("(self, y)", "(self, *, y)"),
        ('"ab"', 'b"ab"'),
        ("import a", "import b"),
        ("class C(B)", "class C(D)"),
        ("    def f", "    @g\n    def f"),
        ("import a\n", "import a\nif not TYPE_CHECKING:\n    import b\n"),
    ],
)
def test_what_runs_counts(old: str, new: str) -> None:
    assert old in BASE
    changed = BASE.replace(old, new)
    assert read_facts(changed.encode()).digest != read_facts(BASE.encode()).digest


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[Callable[..., type]]:
    """Write a plug-in file and load its class, as experiments do."""

    def load(text: str, folder: str = "plugins", name: str = "mine") -> type:
        path = tmp_path / folder / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return load_class(f"{path}:Mine")

    yield load
    for name in [n for n in sys.modules if n.startswith("ratchet_plugin_")]:
        del sys.modules[name]


def test_a_plugin_counts_with_the_files_beside_it(
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
    assert set(before.modules) == {"mine", "beside", "ratchet.errors"}
    beside.write_text("x = 22\n")
    assert code_fingerprint(plugin(text)).difference(before) == ["beside changed"]
    changed = code_fingerprint(plugin(text + "    y = 1\n"))
    assert changed.difference(before) == ["beside changed", "mine changed"]


def test_the_place_of_a_plugin_does_not_count(plugin: Callable[..., type]) -> None:
    text = "class Mine: ...\n"
    assert code_fingerprint(plugin(text)) == code_fingerprint(plugin(text, folder="moved"))


BY_DOTS = "from .beside import x\nclass Mine:\n    x = x\n"


def test_what_a_plugin_imports_by_dots_counts(plugin: Callable[..., type], tmp_path: Path) -> None:
    plugin("class Mine: ...\n", name="unrelated")
    beside = tmp_path / "plugins" / "beside.py"
    beside.write_text("from . import json\nx = 1\n")
    (tmp_path / "plugins" / "json.py").write_text("no_librarys = 1\n")
    before = code_fingerprint(plugin(BY_DOTS))
    assert set(before.modules) == {"beside", "json", "mine"}
    beside.write_text("from . import json\nx = 22\n")
    assert code_fingerprint(plugin(BY_DOTS)).difference(before) == ["beside changed"]


def test_each_folder_has_its_own_beside(plugin: Callable[..., type], tmp_path: Path) -> None:
    for number, folder in enumerate(["plugins", "other"]):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "beside.py").write_text(f"x = {number}\n")
    one, two = plugin(BY_DOTS), plugin(BY_DOTS, folder="other")
    both = code_fingerprint(one, two)
    assert set(both.modules) == {"beside", "beside#2", "mine", "mine#2"}
    assert code_fingerprint(one) != code_fingerprint(two)


def test_where_neighbours_lie_does_not_count(plugin: Callable[..., type], tmp_path: Path) -> None:
    for folder in ("plugins", "moved"):
        (tmp_path / folder / "parts").mkdir(parents=True)
        (tmp_path / folder / "beside.py").write_text("from .parts.one import x\n")
        (tmp_path / folder / "parts" / "one.py").write_text("x = 1\n")
    found = code_fingerprint(plugin(BY_DOTS))
    assert set(found.modules) == {"beside", "mine", "parts.one"}
    assert found == code_fingerprint(plugin(BY_DOTS, folder="moved"))


def test_a_file_reached_by_path_and_by_dots_counts_once(plugin: Callable[..., type]) -> None:
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


def test_an_installed_package_counts_whole_as_far_as_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages" / "installed_plugin"
    (package / "parts").mkdir(parents=True)
    (package / "__init__.py").write_text("FLAG = 1\n")
    (package / "parts" / "__init__.py").write_text("")
    (package / "parts" / "one.py").write_text("class One: ...\n")
    (package / "unused.py").write_text("")
    (package / "trainer.py").write_text("from .parts.one import One\nclass Two(One): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    module = importlib.import_module("installed_plugin.trainer")
    assert set(code_fingerprint(module.Two).modules) == {
        "installed_plugin",
        "installed_plugin.parts",
        "installed_plugin.parts.one",
        "installed_plugin.trainer",
    }
    for name in [n for n in sys.modules if n.startswith("installed_plugin")]:
        del sys.modules[name]


def test_libraries_are_not_followed() -> None:
    assert all(name.startswith("ratchet.") for name in code_fingerprint(StageStore).modules)


def test_extra_roots_are_followed(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("import two\n")
    (tmp_path / "two.py").write_text("")
    (tmp_path / "three.py").write_text("")
    found = code_fingerprint(extra_roots=[tmp_path / "one.py"])
    assert set(found.modules) == {"one", "two"}


def test_code_that_was_loaded_counts_as_it_was_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edit during a run must not give the old code's results the new code's key."""
    path = tmp_path / "loaded_once.py"
    path.write_text("class A:\n    x = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    module = importlib.import_module("loaded_once")
    before = code_fingerprint(module.A)
    path.write_text("class A:\n    x = 22\n")
    assert code_fingerprint(module.A) == before
    importlib.reload(module)
    assert code_fingerprint(module.A).difference(before) == ["loaded_once changed"]
    del sys.modules["loaded_once"]


def test_code_without_a_source_has_no_key() -> None:
    homeless = type("Homeless", (), {"__module__": "no_such_module"})
    with pytest.raises(StageKeyError, match="no source file"):
        code_fingerprint(homeless)
    with pytest.raises(StageKeyError, match="expected a class"):
        code_fingerprint(3)  # type: ignore[arg-type]
    with pytest.raises(StageKeyError, match="got no class"):
        code_fingerprint()


def test_the_whole_code_base_is_fast_enough() -> None:
    """Once read; a bound with much room, for it takes a few milliseconds of CPU."""
    code_fingerprint(StageStore)
    start = time.process_time()
    code_fingerprint(StageStore)
    assert time.process_time() - start < 0.1
