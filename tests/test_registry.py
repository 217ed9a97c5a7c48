"""Registries find classes by name, file and installed package; each name has one class."""

from __future__ import annotations

import ast
import sys
from collections import OrderedDict
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest

import ratchet.parameters
from ratchet.errors import ParameterError, UnknownNameError
from ratchet.parameters.base import AGENT_MODELS
from ratchet.parameters.reading.discovery import load_plugins
from ratchet.plugins import load_class
from ratchet.registry import Entry, Registry
from ratchet.scenarios.registry import SCENARIOS

ROOT = Path(__file__).parents[1]

HOME = """
BUILT_IN = {"plain": "games_home.plain"}
"""
PLAIN = """
from collections import OrderedDict
from games_registry import GAMES

@GAMES.register("plain")
class Plain(OrderedDict):
    \"\"\"A ``plain`` game.

    It has no rules.
    \"\"\"
"""
REGISTRY = """
from ratchet.registry import Registry

GAMES = Registry("game", "collections:OrderedDict", "games_home", parameter="dataset")
"""
OFFERED = """
from collections import OrderedDict

class Offered(OrderedDict): ...
"""
CUSTOM = """
from collections import OrderedDict
from games_registry import GAMES

@GAMES.register("custom")
class Custom(OrderedDict):
    \"\"\"A custom game.\"\"\"

class Nothing: ...
"""


@dataclass
class Reference:
    module_path: str
    class_name: str


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a package with a built-in game and a registry of games."""
    (tmp_path / "games_home").mkdir()
    (tmp_path / "games_home" / "__init__.py").write_text(HOME)
    (tmp_path / "games_home" / "plain.py").write_text(PLAIN)
    (tmp_path / "games_registry.py").write_text(REGISTRY)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def games(folder: Path) -> Registry[OrderedDict]:
    import games_registry

    return games_registry.GAMES


def test_names_are_listed_with_their_origin_and_nothing_is_imported(games, install) -> None:
    install("more_games", "games", "offered", "Offered", OFFERED)
    assert games.names() == ["offered", "plain"]
    assert games.entries() == [
        Entry("offered", "package more_games 1.2", ""),
        Entry("plain", "built-in", "A `plain` game."),
    ]
    games.check("plain")
    assert not {"games_home.plain", "more_games"} & sys.modules.keys()


def test_a_class_is_found_by_name_by_file_and_installed(games, folder, install) -> None:
    install("more_games", "games", "offered", "Offered", OFFERED)
    (folder / "mine").mkdir()
    (folder / "mine" / "custom.py").write_text(CUSTOM)
    assert games.find("plain") is games.find("plain")
    assert games.find("plain").__module__ == "games_home.plain"
    assert games.find("offered").__module__ == "more_games"
    by_path = games.find("mine/custom.py:Custom", folder)
    assert by_path is games.find(Reference("custom.py", "Custom"), folder / "mine")
    assert by_path is games.find("custom")  # loading the file also registers the name
    file = str(folder / "mine" / "custom.py")
    assert games.entries()[0] == Entry("custom", file, "A custom game.")


def test_an_unknown_name_error_suggests_the_nearest_name_and_a_file(games) -> None:
    expected = (
        r"dataset: unknown 'plian'\. Did you mean 'plain'\? Give a custom game as"
        r" 'path/to/file\.py:ClassName'"
    )
    with pytest.raises(UnknownNameError, match=expected):
        games.find("plian")


def test_a_file_without_a_matching_class_is_refused(games, folder) -> None:
    (folder / "custom.py").write_text(CUSTOM)
    with pytest.raises(ParameterError, match=r"bases \['object'\], expected a subclass of"):
        games.find("custom.py:Nothing", folder)
    with pytest.raises(ParameterError, match=r"'custom.py', expected 'path/to/file.py:ClassName'"):
        games.find("custom.py", folder)


def test_a_class_may_be_registered_again_but_not_replaced(games, folder, monkeypatch) -> None:
    file = folder / "custom.py"
    file.write_text(CUSTOM)
    loaded = load_class(f"{file}:Custom")
    import custom  # the same file as a different module

    assert custom.Custom is not loaded
    (folder / "other.py").write_text(CUSTOM)
    with pytest.raises(
        ParameterError, match=r"game 'custom' is taken by .*custom.*Custom; got .*other.*Custom"
    ):
        games.find("other.py:Custom", folder)
    with pytest.raises(ParameterError, match=r"taken by games_home.plain; got custom.Custom"):
        games.register("plain")(custom.Custom)


def test_a_copied_and_edited_file_takes_over_its_names(games, folder) -> None:
    places = []
    for place in ("here", "there"):
        (folder / place).mkdir()
        (folder / place / "custom.py").write_text(f"{CUSTOM}\nplace = {place!r}\n")
        places.append(games.find("custom.py:Custom", folder / place))
    assert places[0] is not places[1]
    assert games.find("custom") is places[1]


def test_an_installed_class_cannot_take_a_registered_name(games, install) -> None:
    install("more_games", "games", "plain", "Offered", OFFERED)
    with pytest.raises(
        ParameterError, match=r"'plain' is taken by games_home.plain; got more_games.Offered"
    ):
        games.find("plain")
    install("yet_more_games", "games", "twice", "Offered", OFFERED)
    install("most_games", "games", "twice", "Offered", OFFERED)
    with pytest.raises(ParameterError, match=r"'twice' is taken by .*_games.Offered; got "):
        games.find("twice")


def test_an_installed_class_of_another_kind_is_refused(games, install) -> None:
    install("more_games", "games", "offered", "Offered", "class Offered: ...\n")
    with pytest.raises(
        ParameterError,
        match=r"'offered' of package more_games 1.2 is <class .*expected .*OrderedDict",
    ):
        games.find("offered")


def test_the_names_of_a_class_include_those_of_its_bases(games) -> None:
    class Derived(games.find("plain")): ...

    assert games.names_of(Derived) == ("plain",)
    assert games.names_of(OrderedDict) == ()


PACKAGES = {
    "register_trainer": ("trainers", "trainers.registry:TRAINERS"),
    "register_protocol_handler": ("ratchet", "ratchet.protocols.registry:PROTOCOLS"),
    "register_scenario": ("ratchet", "ratchet.scenarios.registry:SCENARIOS"),
    "register_analyser": ("ratchet", "ratchet.analysis.base:ANALYSERS"),
    "register_network": ("ratchet", "ratchet.agents.networks.registry:NETWORKS"),
    "register_callback": ("trainers", "trainers.callbacks.registry:CALLBACKS"),
    "register_dynamics": ("ratchet", "ratchet.scenarios.gymnasium.registry:ENVIRONMENTS"),
}


def decorated(package: str, *decorators: str) -> dict[str, str]:
    """Return the first argument of each such decorator in a package's sources → its module."""
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or getattr(node.func, "id", "") not in decorators:
                continue
            if isinstance(node.args[0], ast.Constant):
                found[node.args[0].value] = module
    return found


@pytest.mark.slow
@pytest.mark.parametrize("decorator", PACKAGES)
def test_built_in_names_are_those_registered_in_the_sources(decorator: str) -> None:
    package, place = PACKAGES[decorator]
    module, _, name = place.partition(":")
    registry = getattr(import_module(module), name)
    assert dict(registry.built_in) == decorated(package, decorator)
    for each in registry.built_in:
        found = registry.find(each)
        assert issubclass(found, registry.base)
        assert found.__module__ == registry.built_in[each]


def test_all_modules_that_register_parameters_are_listed() -> None:
    found = decorated("ratchet", "register_parameters", "register_agent_parameters")
    assert set(ratchet.parameters.BUILT_IN) == set(found.values())


def test_a_built_in_scenario_reads_its_registered_agents() -> None:
    load_plugins()
    for name in SCENARIOS.built_in:
        assert SCENARIOS.find(name).agent_parameters() is AGENT_MODELS[name]
