"""Code fingerprints include exactly the definitions that a class uses.

The project's packages are replaced by copies in a temporary folder, so that they can be
edited.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from types import ModuleType

import pytest

import ratchet.store.closure as closure
from ratchet.algorithms.language.group_advantages import group_advantages
from ratchet.errors import StageKeyError
from ratchet.models.master_weights import MasterWeights
from ratchet.rollouts.batch import Batch
from ratchet.store.fingerprint import Fingerprint, code_fingerprint, find_definition
from ratchet.store.sources import read_facts
from ratchet.store.store import StageStore

FILES = {
    "ratchet/__init__.py": (
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from ratchet.stored import Store as Store\n"
    ),
    "ratchet/errors.py": "class Error(Exception): ...\n",
    "ratchet/stored.py": "import json\nclass Store: ...\nclass Unused: ...\n",
    "ratchet/typing_only.py": "Kind = int\n",
    "ratchet/elsewhere.py": "x = 1\n",
    "ratchet/protocols/__init__.py": (
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from ratchet.protocols.base import Handler as Handler\n"
        "    from ratchet.protocols.other import Other as Other\n"
    ),
    "ratchet/protocols/base.py": (
        "from ratchet.errors import Error\n"
        "class Handler:\n"
        "    def rounds(self):\n        raise Error('no rounds', 3)\n"
        "    def describe(self):\n        return 'unused'\n"
        "    def __len__(self):\n        return 2\n"
    ),
    "ratchet/protocols/other.py": "class Other: ...\n",
    "ratchet/protocols/third.py": "class Third: ...\n",
    "trainers/__init__.py": "from trainers.base import Trainer\n",
    "trainers/base.py": (
        "import torch\nimport gymnasium\n"
        "class Trainer:\n    def step(self):\n        return 1\n"
        "    def called_by_the_library(self):\n        return 2\n"
    ),
    "trainers/losses.py": (
        "from math import sin as f\n"
        "SCALE = 2\n"
        "UNUSED = 3\n"
        "def loss(x: int) -> int:\n    return f(x) * SCALE\n"
        "def unused(x):\n    return x\n"
        "@register('loss')\ndef registered(x):\n    return x\n"
        "if SCALE > 1:\n    def either(x):\n        return 1\n"
        "print(SCALE)\n"
    ),
    "trainers/late.py": "y = 2\n",
    "trainers/ppo.py": (
        "from __future__ import annotations\n"
        "import torch\n"
        "from typing import TYPE_CHECKING\n"
        "from ratchet.protocols import Handler\n"
        "from trainers import Trainer, losses\n"
        "if TYPE_CHECKING:\n    from ratchet.typing_only import Kind\n"
        "class Ppo(Trainer):\n"
        "    def train(self, handler: Handler) -> Kind:\n"
        "        from ratchet import Store\n"
        "        import importlib\n"
        "        handler.rounds()\n"
        "        losses.loss(Store())\n"
        '        importlib.import_module("trainers.late")\n'
    ),
}
EXPECTED = {
    "ratchet.protocols.base",
    "ratchet.stored",
    "trainers.base",
    "trainers.late",
    "trainers.losses",
    "trainers.ppo",
}


class Project:
    """Packages in a folder; ``module`` is one that was imported from there."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.monkeypatch = monkeypatch
        for name, text in FILES.items():
            self.write(name, text)
        folders = {name: (root / name,) for name in ("ratchet", "trainers", "tasks")}
        monkeypatch.setattr(closure, "_project_folders", lambda: folders)

    def write(self, name: str, text: str) -> None:
        """Replace a file, with a new inode, as editors do."""
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


def test_the_closure_contains_only_used_definitions(project: Project) -> None:
    assert set(project.fingerprint().modules) == EXPECTED


def changed_by(project: Project, name: str, old: str, new: str) -> list[str]:
    """Replace text in a file and return the changes of the fingerprint."""
    before = project.fingerprint()
    text = (project.root / name).read_text()
    assert old in text
    project.write(name, text.replace(old, new))
    return project.fingerprint().difference(before)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("trainers/losses.py", "* SCALE", "+ SCALE"),
        ("trainers/losses.py", "SCALE = 2", "SCALE = 4"),
        ("trainers/losses.py", "import sin as f", "import cos as f"),
        ("trainers/losses.py", "('loss')", "('other')"),
        ("trainers/losses.py", "def registered(x):", "def registered(y):"),
        ("trainers/losses.py", "        return 1", "        return 5"),
        ("trainers/losses.py", "print(SCALE)", "print(SCALE + 1)"),
        ("trainers/losses.py", "SCALE = 2", "SCALE = 2\nSCALE += 1"),
        ("trainers/base.py", "return 1", "return 3"),
        ("trainers/base.py", "return 2", "return 3"),
        ("trainers/ppo.py", "handler.rounds()", "handler.rounds"),
        ("trainers/late.py", "y = 2", "y = 3"),
        ("ratchet/protocols/base.py", "'no rounds', 3", "'no rounds', 4"),
        ("ratchet/protocols/base.py", "return 2", "return 3"),
        ("ratchet/stored.py", "class Store: ...", "class Store: x = 1"),
    ],
)
def test_an_edit_of_used_code_counts(project: Project, name: str, old: str, new: str) -> None:
    label = name.removesuffix(".py").replace("/", ".")
    assert changed_by(project, name, old, new) == [f"{label} changed"]


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("trainers/losses.py", "UNUSED = 3", "UNUSED = 4"),
        ("trainers/losses.py", "UNUSED = 3\n", ""),
        ("trainers/losses.py", "def unused(x):", "def unused(y):"),
        ("trainers/losses.py", "(x: int) -> int", "(x: float)"),
        ("trainers/losses.py", "from math", "import os\nfrom math"),
        ("ratchet/protocols/base.py", "'no rounds'", "'there are no rounds'"),
        ("ratchet/protocols/base.py", "'unused'", "'not used'"),
        ("ratchet/stored.py", "class Unused: ...", "class Unused: x = 1"),
        ("ratchet/stored.py", "import json", "import json, os"),
        ("ratchet/errors.py", "...", "x = 1"),
        ("ratchet/elsewhere.py", "1", "2"),
        ("ratchet/typing_only.py", "int", "float"),
        ("ratchet/__init__.py", "if TYPE", "z = 1\nif TYPE"),
        ("trainers/__init__.py", "from", "z = 1\nfrom"),
    ],
)
def test_an_edit_of_unused_code_does_not_count(
    project: Project, name: str, old: str, new: str
) -> None:
    assert changed_by(project, name, old, new) == []


@pytest.mark.parametrize(
    "text",
    [
        "y = h.describe()",
        "y = getattr(h, 'describe')",
        "match h:\n    case H(describe=1): ...",
    ],
)
def test_a_method_counts_where_its_name_is_used(project: Project, text: str) -> None:
    project.add("trainers/late.py", text + "\n")
    changes = changed_by(project, "ratchet/protocols/base.py", "'unused'", "'changed'")
    assert changes == ["ratchet.protocols.base changed"]


def test_all_methods_count_where_a_library_may_call_them(project: Project) -> None:
    project.write("ratchet/protocols/base.py", "import t\n" + FILES["ratchet/protocols/base.py"])
    project.add("ratchet/protocols/base.py", "class Derived(Handler, t.Module): ...\n")
    changes = changed_by(project, "ratchet/protocols/base.py", "'unused'", "'changed'")
    assert changes == ["ratchet.protocols.base changed"]


@pytest.mark.parametrize("field", ["rate: float = 1", "rate: float = 2", "more: int = 0"])
def test_fields_of_parameters_do_not_count_since_keys_contain_values(
    project: Project, field: str
) -> None:
    text = "class Store(SubParameters):\n    {}\n    def rounds(self):\n        return {}\n"
    project.write("trainers/ppo.py", FILES["trainers/ppo.py"].replace("Store()", "Store"))
    project.write("ratchet/stored.py", text.format("rate: float = 1", 1))
    before = project.fingerprint()
    project.write("ratchet/stored.py", text.format(field, 1))
    assert project.fingerprint() == before
    project.write("ratchet/stored.py", text.format(field, 2))
    assert project.fingerprint().difference(before) == ["ratchet.stored changed"]


def test_a_definition_counts_without_being_imported(project: Project) -> None:
    project.write("tasks/stages.py", "from tasks.train import train\n")
    project.write("tasks/train.py", "def train(): return 1\ndef test(): return 2\n")
    assert find_definition(["tasks.none", "tasks.stages"], "train") == ("tasks.stages", "train")
    before = code_fingerprint(definitions=[("tasks.stages", "train")])
    assert set(before.modules) == {"tasks.train"}
    project.write("tasks/train.py", "def train(): return 1\ndef test(): return 3\n")
    assert code_fingerprint(definitions=[("tasks.stages", "train")]) == before
    project.write("tasks/train.py", "def train(): return 2\ndef test(): return 3\n")
    assert code_fingerprint(definitions=[("tasks.stages", "train")]) != before
    with pytest.raises(StageKeyError, match="found no 'save'"):
        find_definition(["tasks.stages"], "save")


def test_added_and_removed_imports_are_reported(project: Project) -> None:
    before = project.fingerprint()
    project.write(
        "trainers/losses.py", "import ratchet.elsewhere\ndef loss(x):\n    return x * 2\n"
    )
    project.write("trainers/ppo.py", FILES["trainers/ppo.py"].replace("Store()", "1"))
    project.write(
        "trainers/ppo.py",
        FILES["trainers/ppo.py"].replace("Store()", "1").replace("from ratchet import Store", ""),
    )
    assert project.fingerprint().difference(before) == [
        "ratchet.elsewhere added",
        "ratchet.stored removed",
        "trainers.losses changed",
        "trainers.ppo changed",
    ]


def test_attributes_of_a_package_count_if_they_are_used(project: Project) -> None:
    project.write("trainers/late.py", "import ratchet.protocols as p\nh = p.Other\n")
    found = set(project.fingerprint("trainers.late").modules)
    assert found == {"trainers.late", "ratchet.protocols.other"}


@pytest.mark.parametrize(
    "line", ["from ratchet.protocols import *", "from ratchet.protocols import q"]
)
def test_unresolved_names_count_as_everything(project: Project, line: str) -> None:
    project.write("trainers/late.py", line + "\n")
    found = set(project.fingerprint("trainers.late").modules)
    assert found >= {"ratchet.protocols.base", "ratchet.protocols.other"}


def test_circular_imports_terminate(project: Project) -> None:
    project.write("ratchet/elsewhere.py", "import ratchet.protocols.base\nimport trainers.ppo\n")
    project.add("ratchet/protocols/base.py", "import ratchet.elsewhere\n")
    project.write("trainers/__init__.py", "from trainers import Trainer\n")
    assert set(project.fingerprint("ratchet.elsewhere").modules) >= EXPECTED - {"trainers.base"}


def test_the_location_of_the_project_does_not_count(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = project.fingerprint()
    assert Project(tmp_path / "moved", monkeypatch).fingerprint() == before


def test_an_unreadable_file_fails_the_key(project: Project) -> None:
    project.write("trainers/losses.py", "def loss(x:\n")
    with pytest.raises(StageKeyError, match=r"cannot read .*losses\.py as Python"):
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
def test_formatting_does_not_count(text: str) -> None:
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
def test_executed_code_counts(old: str, new: str) -> None:
    assert old in BASE
    changed = BASE.replace(old, new)
    assert read_facts(changed.encode()).digest != read_facts(BASE.encode()).digest


def test_the_imported_modules_of_an_installed_package_count(
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


def test_loaded_code_counts_as_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_code_of_the_project_is_followed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = code_fingerprint(StageStore)
    monkeypatch.setattr(closure.Closure, "follow", lambda _: pytest.fail("followed again"))
    assert code_fingerprint(StageStore) == first


def test_code_shared_with_other_stages_counts_as_if_followed_alone(
    plugin: Callable[..., type],
) -> None:
    mine = plugin("class Mine:\n    def peek(self): ...\n")
    objects = (MasterWeights, group_advantages, Batch)
    sets = [each for count in range(4) for each in combinations(objects, count)]
    code = closure.KnownCode()
    for shared in sets:
        for others in sets:
            code.closures.clear()
            expected = code_fingerprint(*shared, *others, mine)
            assert code_fingerprint(*others, mine, shared=shared, code=code) == expected
    assert {objects for objects, _ in code.shared} == set(map(frozenset, sets))
