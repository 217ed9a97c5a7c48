"""A class is found by name, by file and among installed packages; a name belongs to one class."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import ratchet.registry
from ratchet.errors import ParameterError, UnknownNameError
from ratchet.plugins import load_class
from ratchet.registry import Entry, Registry

HOME = """
BUILT_IN = {"plain": "games_home.plain"}
"""
PLAIN = """
from collections import OrderedDict
from games_registry import GAMES

@GAMES.register("plain")
class Plain(OrderedDict): ...
"""
REGISTRY = """
from ratchet.registry import Registry

GAMES = Registry("game", "collections:OrderedDict", "games_home", parameter="dataset")
"""
OFFERED = """
from collections import OrderedDict

class Offered(OrderedDict): ...
"""
OWN = """
from collections import OrderedDict
from games_registry import GAMES

@GAMES.register("own")
class Own(OrderedDict): ...

class Nothing: ...
"""


@dataclass
class Reference:
    module_path: str
    class_name: str


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a built-in game, and a registry of games."""
    (tmp_path / "games_home").mkdir()
    (tmp_path / "games_home" / "__init__.py").write_text(HOME)
    (tmp_path / "games_home" / "plain.py").write_text(PLAIN)
    (tmp_path / "games_registry.py").write_text(REGISTRY)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]
    ratchet.registry.installed_in.cache_clear()


@pytest.fixture
def games(folder: Path) -> Registry[OrderedDict]:
    import games_registry

    return games_registry.GAMES


@pytest.fixture
def install(folder: Path) -> Callable[..., None]:
    """Install a package that offers a class as an entry point."""

    def install(package: str, name: str, source: str = OFFERED) -> None:
        (folder / f"{package}.py").write_text(source)
        facts = folder / f"{package}-1.2.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
        (facts / "entry_points.txt").write_text(f"[ratchet.games]\n{name} = {package}:Offered\n")
        ratchet.registry.installed_in.cache_clear()

    return install


def test_names_are_listed_with_their_origin_and_nothing_is_imported(games, install) -> None:
    install("more_games", "offered")
    assert games.names() == ["offered", "plain"]
    assert games.entries() == [
        Entry("offered", "package more_games 1.2"),
        Entry("plain", "built-in"),
    ]
    games.check("plain")
    assert not {"games_home.plain", "more_games"} & sys.modules.keys()


def test_a_class_is_found_by_name_by_file_and_installed(games, folder, install) -> None:
    install("more_games", "offered")
    (folder / "mine").mkdir()
    (folder / "mine" / "own.py").write_text(OWN)
    assert games.find("plain") is games.find("plain")
    assert games.find("plain").__module__ == "games_home.plain"
    assert games.find("offered").__module__ == "more_games"
    by_path = games.find("mine/own.py:Own", folder)
    assert by_path is games.find(Reference("own.py", "Own"), folder / "mine")
    assert by_path is games.find("own")  # the file gave it a name too
    assert games.entries()[1] == Entry("own", str(folder / "mine" / "own.py"))


def test_an_unknown_name_gets_the_nearest_and_the_way_by_file(games) -> None:
    expected = (
        r"dataset: unknown 'plian'\. Did you mean 'plain'\? A game of your own is given as"
        r" 'path/to/file\.py:ClassName'"
    )
    with pytest.raises(UnknownNameError, match=expected):
        games.find("plian")


def test_a_file_is_loaded_as_one_or_refused(games, folder) -> None:
    (folder / "own.py").write_text(OWN)
    with pytest.raises(ParameterError, match=r"bases \['object'\], expected a subclass of"):
        games.find("own.py:Nothing", folder)
    with pytest.raises(ParameterError, match=r"'own.py', expected 'path/to/file.py:ClassName'"):
        games.find("own.py", folder)


def test_the_same_class_may_come_again_another_may_not(games, folder, monkeypatch) -> None:
    file = folder / "own.py"
    file.write_text(OWN)
    loaded = load_class(f"{file}:Own")
    import own  # the same file under another module's name

    assert own.Own is not loaded
    (folder / "other.py").write_text(OWN)
    with pytest.raises(
        ParameterError, match=r"game 'own' is taken by .*own.*Own; got .*other.*Own"
    ):
        games.find("other.py:Own", folder)
    with pytest.raises(ParameterError, match=r"'plain' is taken by games_home.plain; got own.Own"):
        games.register("plain")(own.Own)


def test_a_file_that_is_copied_and_edited_takes_its_names_along(games, folder) -> None:
    places = []
    for place in ("here", "there"):
        (folder / place).mkdir()
        (folder / place / "own.py").write_text(f"{OWN}\nplace = {place!r}\n")
        places.append(games.find("own.py:Own", folder / place))
    assert places[0] is not places[1]
    assert games.find("own") is places[1]


def test_an_installed_class_takes_no_name_that_another_has(games, install) -> None:
    install("more_games", "plain")
    with pytest.raises(
        ParameterError, match=r"'plain' is taken by games_home.plain; got more_games.Offered"
    ):
        games.find("plain")
    install("yet_more_games", "twice")
    install("most_games", "twice")
    with pytest.raises(ParameterError, match=r"'twice' is taken by .*_games.Offered; got "):
        games.find("twice")


def test_an_installed_class_of_another_kind_is_refused(games, install) -> None:
    install("more_games", "offered", "class Offered: ...\n")
    with pytest.raises(
        ParameterError,
        match=r"'offered' of package more_games 1.2 is <class .*expected .*OrderedDict",
    ):
        games.find("offered")


def test_the_names_of_a_class_are_its_bases_names_too(games) -> None:
    class Derived(games.find("plain")): ...

    assert games.names_of(Derived) == ("plain",)
    assert games.names_of(OrderedDict) == ()
