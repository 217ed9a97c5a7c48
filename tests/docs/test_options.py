"""Options that pages show for a command exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from flows.cli.main import app
from tests.docs.blocks import ROOT, pages

_COMMAND = re.compile(r"\bratchet ((?:\\\n|[^`|;&\n·#])+)")


def commands() -> dict[str, Any]:
    """Return all commands by their words, such as ``llm serve``."""
    found: dict[str, Any] = {}

    def add(command: Any, words: tuple[str, ...]) -> None:
        for name, each in getattr(command, "commands", {}).items():
            found[" ".join((*words, name))] = each
            add(each, (*words, name))

    add(typer.main.get_command(app), ())
    return found


def shown_options() -> Iterator[tuple[str, str, str]]:
    """Yield page, command and option of each command line in a page."""
    known = commands()
    for page in pages():
        for match in _COMMAND.finditer(page.read_text("utf-8")):
            words = match[1].split()
            names = (" ".join(words[:n]) for n in (2, 1))
            if (command := next((name for name in names if name in known), None)) is None:
                continue
            for word in words:
                if re.fullmatch(r"--[a-z][a-z-]*", option := word.partition("=")[0]):
                    yield str(page.relative_to(ROOT)), command, option


@pytest.mark.parametrize(("page", "command", "option"), sorted(set(shown_options())))
def test_a_shown_option_exists(page: str, command: str, option: str) -> None:
    found = commands()[command]
    names = {name for each in found.params for name in (*each.opts, *each.secondary_opts)}
    assert option in {*names, "--help", "--version"}, f"{page}: `ratchet {command}` has {names}"
