"""Edits that change what a stage computes change its fingerprint, however the code is reached.

``trainers/late.py`` is the stage's code; the edited definition is reached from it without a plain
use of its name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from ratchet.shadowing import ROOT
from ratchet.store.closure import Closure
from ratchet.store.fingerprint import code_fingerprint
from ratchet.store.infrastructure import is_infrastructure
from tests.store.test_store_fingerprint import Project, project

__all__ = ["project"]

TOPS = ("ratchet", "trainers", "tasks")
SERVICES = (
    *("ratchet.service", "ratchet.language_models.suites", "ratchet.reports"),
    "ratchet.analysis",
)

PARTS = (
    "class Loss:\n"
    "    def of_clip(self):\n        return 1.0\n"
    "    def close(self):\n        return 2.0\n"
    "    def plain(self):\n        return 3.0\n"
)
CASES: dict[str, tuple[dict[str, str], str]] = {
    "method by a path of attributes": (
        {
            "trainers/late.py": "from operator import attrgetter\nfrom trainers.parts import Loss\n"
            "x = attrgetter('loss.plain')(Loss)"
        },
        "3.0",
    ),
    "method in a format string": (
        {"trainers/late.py": "from trainers.parts import Loss\nx = '{0.plain}'.format(Loss())"},
        "3.0",
    ),
    "method called by the standard library": (
        {
            "trainers/late.py": "from contextlib import closing\nfrom trainers.parts import Loss\n"
            "with closing(Loss()): ..."
        },
        "2.0",
    ),
    "keys of a mapping": (
        {
            "trainers/parts.py": "class Loss:\n    def keys(self):\n        return [1.0]\n",
            "trainers/late.py": "from trainers.parts import Loss\nx = {**Loss()}",
        },
        "1.0",
    ),
    "hook of an enumeration": (
        {
            "trainers/parts.py": "from enum import Enum\nclass Loss(Enum):\n    A = 1\n"
            "    @classmethod\n    def _missing_(cls, value):\n        return 1.0\n",
            "trainers/late.py": "from trainers.parts import Loss\nx = Loss(3)",
        },
        "1.0",
    ),
    "method called by a library that is imported in a function": (
        {
            "trainers/parts.py": PARTS + "def run():\n    import gymnasium\n"
            "    gymnasium.run(Loss())\n",
            "trainers/late.py": "from trainers.parts import run\nrun()",
        },
        "3.0",
    ),
    "method called by infrastructure": (
        {
            "ratchet/registry.py": "class Base:\n    def run(self):\n        self.hook()\n",
            "trainers/parts.py": "from ratchet.registry import Base\nclass Loss(Base):\n"
            "    def hook(self):\n        return 1.0\n",
            "trainers/late.py": "from trainers.parts import Loss\nx = Loss().run()",
        },
        "1.0",
    ),
    "function called by infrastructure": (
        {
            "ratchet/registry.py": "def run(x):\n    x.hook()\n",
            "trainers/parts.py": "class Loss:\n    def hook(self):\n        return 1.0\n",
            "trainers/late.py": "from ratchet import registry\nfrom trainers.parts import Loss\n"
            "x = registry.run(Loss())",
        },
        "1.0",
    ),
    "module in a table": (
        {
            "trainers/parts.py": "from importlib import import_module\n"
            "TABLE = {'clip': 'trainers.clip'}\n"
            "def find(kind):\n    return import_module(TABLE[kind])\n",
            "trainers/clip.py": "def loss():\n    return 1.0\n",
            "trainers/late.py": "from trainers.parts import find\nx = find('clip').loss()",
        },
        "1.0",
    ),
    "class in a table": (
        {
            "trainers/parts.py": "TABLE = {'clip': 'trainers.clip:Loss'}\n"
            "def find(kind):\n    return load(TABLE[kind])\n",
            "trainers/clip.py": "class Loss:\n    x = 1.0\n",
            "trainers/late.py": "from trainers.parts import find\nx = find('clip').loss()",
        },
        "1.0",
    ),
    "module by a relative name": (
        {
            "trainers/parts.py": "from importlib import import_module\n"
            "def find():\n    return import_module('.clip', __package__)\n",
            "trainers/clip.py": "def loss():\n    return 1.0\n",
            "trainers/late.py": "from trainers.parts import find\nx = find().loss()",
        },
        "1.0",
    ),
    "one of two submodules of an imported package": (
        {
            "trainers/parts.py": "def loss():\n    return 1.0\n",
            "trainers/late.py": "import trainers.parts\nimport trainers.base\n"
            "x = trainers.parts.loss()\n",
        },
        "1.0",
    ),
    "the first of two imports of a name": (
        {
            "trainers/parts.py": "def loss():\n    return 1.0\n",
            "trainers/late.py": "from trainers.parts import loss\ny = loss()\n"
            "from trainers.losses import loss\nx = loss()\n",
        },
        "1.0",
    ),
    "constant of a class of parameters": (
        {
            "trainers/parts.py": "class LossParameters(SubParameters):\n"
            "    scale: ClassVar[float] = 1.0\n    rate: float = 2.0\n",
            "trainers/late.py": "from trainers.parts import LossParameters\n"
            "x = LossParameters.scale",
        },
        "1.0",
    ),
    "private attribute of parameters": (
        {
            "trainers/parts.py": "class LossParameters(SubParameters):\n    _scale: float = 1.0\n",
            "trainers/late.py": "from trainers.parts import LossParameters\nx = LossParameters()",
        },
        "1.0",
    ),
    "default of parameters that code creates": (
        {
            "trainers/parts.py": "class LossParameters(SubParameters):\n    rate: float = 1.0\n",
            "trainers/late.py": "from trainers.parts import LossParameters\nx = LossParameters()",
        },
        "1.0",
    ),
    "decorated name that another module patches": (
        {
            "trainers/parts.py": "import trainers.losses\ntrainers.losses.SCALE = 1.0\n",
            "trainers/late.py": "import trainers.parts\n",
        },
        "1.0",
    ),
    "default argument": (
        {
            "trainers/parts.py": "def loss(x=1.0):\n    return x\n",
            "trainers/late.py": "from functools import partial\nfrom trainers.parts import loss\n"
            "x = partial(loss)",
        },
        "1.0",
    ),
    "lambda in a table": (
        {
            "trainers/parts.py": "T = {'clip': lambda x: x * 1.0}\n",
            "trainers/late.py": "from trainers import parts\nx = parts.T['clip']",
        },
        "1.0",
    ),
    "star import": (
        {
            "trainers/parts.py": "def loss():\n    return 1.0\n",
            "trainers/late.py": "from trainers.parts import *\nx = loss()",
        },
        "1.0",
    ),
    "conditional import": (
        {
            "trainers/parts.py": "def loss():\n    return 1.0\n",
            "trainers/late.py": "try:\n    from trainers.parts import loss\n"
            "except ImportError:\n    from trainers.losses import loss\nx = loss()",
        },
        "1.0",
    ),
    "attribute of a module": (
        {
            "trainers/parts.py": "SCALE = 1.0\n",
            "trainers/late.py": "from trainers import parts\nx = getattr(parts, name)",
        },
        "1.0",
    ),
    "attribute that a module computes": (
        {
            "trainers/parts.py": "def __getattr__(name):\n    return 1.0\n",
            "trainers/late.py": "from trainers.parts import anything\nx = anything",
        },
        "1.0",
    ),
    "dunder method, property and mixin": (
        {
            "trainers/parts.py": "class Mixin:\n    def __call__(self):\n        return self.s\n"
            "    @property\n    def s(self):\n        return 1.0\n",
            "trainers/late.py": "from trainers.parts import Mixin\nclass Loss(Mixin): ...\n"
            "x = Loss()()",
        },
        "1.0",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_edit_of_code_that_is_reached_indirectly_counts(project: Project, case: str) -> None:
    files, number = CASES[case]
    files = {"trainers/parts.py": PARTS, **files}
    for name, text in files.items():
        project.write(name, text + "\n")
    before = project.fingerprint("trainers.late")
    (edited,) = [name for name, text in files.items() if number in text]
    project.write(edited, files[edited].replace(number, "7.5") + "\n")
    assert project.fingerprint("trainers.late") != before


PLUGINS: dict[str, tuple[dict[str, str], str]] = {
    "template named by a text": (
        {
            "mine.py": "x = Path(__file__).with_name('prompt.txt').read_text()",
            "prompt.txt": "Answer 1.0",
        },
        "prompt.txt",
    ),
    "template in a folder": (
        {"mine.py": "x = (HERE / 'prompts' / 'a.txt').read_text()", "prompts/a.txt": "Answer 1.0"},
        "prompts/a.txt",
    ),
    "module in a table": (
        {
            "mine.py": "from importlib import import_module\nT = {'a': 'clip'}\n"
            "def f(k):\n    return import_module(T[k])",
            "clip.py": "x = 1.0",
        },
        "clip.py",
    ),
    "module by a relative name": (
        {
            "mine.py": "import importlib\nx = importlib.import_module('.clip', __package__)",
            "clip.py": "x = 1.0",
        },
        "clip.py",
    ),
    "docstring as a prompt": (
        {"mine.py": "def tool():\n    'Return 1.0.'\nprompt = tool.__doc__"},
        "mine.py",
    ),
    "docstring of a decorated tool": (
        {"mine.py": "@agents.tool\ndef find():\n    'Return 1.0.'"},
        "mine.py",
    ),
    "message of an error": (
        {"mine.py": "from ratchet.errors import DataError\ndef f():\n    raise DataError('1.0')"},
        "mine.py",
    ),
    "package on the path that is not installed": (
        {
            "mine.py": "from laboratory.parts import x",
            "../path/laboratory/__init__.py": "",
            "../path/laboratory/parts.py": "x = 1.0",
        },
        "../path/laboratory/parts.py",
    ),
    "module on the path that is not installed": (
        {"mine.py": "import bench", "../path/bench.py": "x = 1.0"},
        "../path/bench.py",
    ),
}


@pytest.mark.parametrize("case", PLUGINS)
def test_an_edit_of_what_a_plugin_uses_counts(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, edited = PLUGINS[case]
    folder = tmp_path / "plugins"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / "path"))
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n")
    before = code_fingerprint(extra_roots=[folder / "mine.py"])
    assert code_fingerprint(extra_roots=[folder / "mine.py"]) == before
    (folder / edited).write_text((folder / edited).read_text().replace("1.0", "7.25"))
    assert code_fingerprint(extra_roots=[folder / "mine.py"]) != before


@pytest.mark.parametrize(
    "call", ["getattr(Loss(), p.kind)", "getattr(Loss(), f'pl{k}')", "vars(Loss)[name]"]
)
def test_any_method_counts_that_a_plugin_may_call_by_a_computed_name(
    project: Project, call: str
) -> None:
    project.write("trainers/parts.py", PARTS)
    project.write("plugins/mine.py", f"from trainers.parts import Loss\nx = {call}\n")
    before = code_fingerprint(extra_roots=[project.root / "plugins" / "mine.py"])
    project.write("trainers/parts.py", PARTS.replace("3.0", "7.5"))
    assert code_fingerprint(extra_roots=[project.root / "plugins" / "mine.py"]) != before


def test_a_users_class_that_parameters_name_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bench.py").write_text("class Net:\n    width = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = code_fingerprint(definitions=[("bench", "Net"), ("torch.nn", "Linear")])
    (tmp_path / "bench.py").write_text("class Net:\n    width = 22\n")
    assert code_fingerprint(definitions=[("bench", "Net")]).difference(before) == ["bench changed"]


UNFOLLOWABLE = {
    "globals": "f = globals()['of_' + kind]",
    "eval": "f = eval(name)",
    "exec": "exec(text)",
    "sys.modules": "f = getattr(sys.modules[__name__], name)",
    "__subclasses__": "kinds = Base.__subclasses__()",
    "__init_subclass__": "class A:\n    def __init_subclass__(cls): ...",
    "metaclass": "class A(metaclass=Meta): ...",
    "__doc__": "prompt = tool.__doc__",
    "getdoc": "prompt = inspect.getdoc(tool)",
    "model_json_schema": "prompt = Tool.model_json_schema()",
    "get_type_hints": "kinds = typing.get_type_hints(tool)",
    "computed getattr": "f = getattr(self, f'of_{kind}')",
    "computed import": "m = import_module(f'trainers.{kind}')",
}
"""Ways to reach code that a search by name cannot follow: the project avoids them."""
ALLOWED = {
    "ratchet/agents/networks/layers.py": {"computed getattr"},  # buffers of the module
    "ratchet/agents/lr_groups.py": {"computed getattr"},  # fields of parameters
    "ratchet/protocols/handler.py": {"metaclass"},  # it checks instances
    "ratchet/protocols/registry.py": {"computed import"},  # `source_classes` adds the module
    "ratchet/scenarios/environment_protocol.py": {"computed import"},  # as above
    "ratchet/scenarios/sandbox/sandboxed/execution.py": {"exec"},  # programs from the data
    "ratchet/scenarios/sandbox/sandboxed/worker.py": {"sys.modules"},  # hides libraries
    "trainers/language/ranks/classes.py": {"sys.modules"},  # finds the trainer, a root
    "trainers/tensordict/rl.py": {"__init_subclass__"},  # names another method of the class
    "trainers/language/trainer.py": {"__doc__"},  # of a class that is created
}
_NAMES = {"globals", "eval", "exec", "get_type_hints", "getdoc", "model_json_schema"}
_DUNDERS = {"__subclasses__", "__doc__", "__init_subclass__"}


def unfollowable(text: str) -> set[str]:
    """Return the constructs in a source text that reach code other than by its name."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            is_computed = [isinstance(each, ast.JoinedStr | ast.BinOp) for each in node.args[:2]]
            if name in _NAMES and (name != "eval" or isinstance(node.func, ast.Name)):
                found.add(name)
            elif name == "getattr" and is_computed[1]:
                found.add("computed getattr")
            elif name == "import_module" and is_computed[0]:
                found.add("computed import")
        elif (name := getattr(node, "attr", getattr(node, "name", ""))) in _DUNDERS:
            found.add(name)
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.modules":
            found.add("sys.modules")
        elif isinstance(node, ast.ClassDef) and any(k.arg == "metaclass" for k in node.keywords):
            found.add("metaclass")
    return found


@pytest.mark.parametrize("way", UNFOLLOWABLE)
def test_code_that_cannot_be_followed_is_detected(way: str) -> None:
    assert unfollowable(UNFOLLOWABLE[way]) == {way}


def _computing_files() -> Iterator[Path]:
    """Iterate over the files that may be in a fingerprint: no infrastructure, no services."""
    for path in (each for top in TOPS for each in sorted((ROOT / top).rglob("*.py"))):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if not is_infrastructure(module) and not module.startswith(SERVICES):
            yield path


@pytest.mark.slow
def test_the_project_only_uses_code_that_can_be_followed() -> None:
    found = {
        str(path.relative_to(ROOT)): unfollowable(path.read_text()) for path in _computing_files()
    }
    assert {name: ways for name, ways in found.items() if ways} == ALLOWED


def test_package_files_of_the_project_only_export_and_list() -> None:
    """Their other statements would run in each stage without being part of any fingerprint."""
    plain = ast.Import | ast.ImportFrom | ast.Assign | ast.AnnAssign
    for path in filter(lambda path: path.name == "__init__.py", _computing_files()):
        for node in ast.parse(path.read_text()).body:
            text = ast.unparse(node)
            is_export = text.startswith(
                ("export_lazily(", "warnings.warn(", "if TYPE_CHECKING:", "'", '"')
            )
            assert is_export or isinstance(node, plain), f"{path}: {text}"


def test_methods_count_that_a_plugin_reached_later_may_call(project: Project) -> None:
    """The class is reached first, when none of its methods is named by any code."""
    project.write("trainers/parts.py", PARTS)
    project.write("plugins/mine.py", "from trainers.parts import Loss\nx = vars(Loss)[name]\n")
    closure = Closure()
    closure.add_definition("trainers.parts", "Loss")
    closure.follow()
    before = set(closure.reached[project.root / "trainers" / "parts.py"])
    closure.add_file(project.root / "plugins" / "mine.py", "mine")
    closure.follow()
    after = closure.reached[project.root / "trainers" / "parts.py"]
    assert {name for name in after - before if name.startswith("Loss.")}


@pytest.mark.parametrize(("imported", "expected"), [("importlib", True), ("pathlib", False)])
def test_modules_named_by_texts_count_if_importlib_is_imported(
    imported: str, expected: bool, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(f"import {imported}\nNAMES = ['clip']\n")
    (tmp_path / "clip.py").write_text("x = 1.0\n")
    modules = code_fingerprint(extra_roots=[tmp_path / "mine.py"]).modules
    assert ("clip" in modules) == expected
