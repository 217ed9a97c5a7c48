"""Games by name: OpenSpiel's, and classes in users' files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ratchet.errors import ParameterError
from ratchet.games import OPEN_SPIEL
from ratchet.games.match import Game
from ratchet.lazy import require_packages
from ratchet.plugins import is_class_spec, load_class

_NAME = re.compile(r"[A-Za-z][\w-]*")


def game_class(name: str, base_dir: Path | str | None = None) -> type[Game] | None:
    """Return the class of a game; None for the name of something else."""
    if name.startswith(OPEN_SPIEL):
        require_packages(["pyspiel"], f"dataset: {name!r}")
        from ratchet.games.open_spiel import OpenSpielGame

        return OpenSpielGame
    if not is_class_spec(name):
        return None
    custom_class = load_class(name, base_dir)
    return custom_class if issubclass(custom_class, Game) else None


def make_game(
    name: str,
    options: Mapping[str, Any],
    base_dir: Path | str | None = None,
    *,
    path: str = "language_task.task_options",
) -> Game | None:
    """Create a game with its parameters, set at ``path``; None for the name of something else.

    Raises ParameterError for parameters that the game does not have.
    """
    chosen = game_class(name, base_dir)
    if chosen is None:
        return None
    arguments = [name] if name.startswith(OPEN_SPIEL) else []
    try:
        game = chosen(*arguments, **options)
    except TypeError as error:
        raise ParameterError(
            f"{path}: got {dict(options)}, which {name} does not accept: {error}."
        ) from error
    seats = getattr(game, "seats", ())
    if not seats or len({*seats}) < len(seats) or not all(map(_NAME.fullmatch, seats)):
        raise ParameterError(
            f"dataset: {name} has the seats {seats!r}, expected a tuple of different names, of"
            " letters, digits, - and _ after a letter."
        )
    return game
