"""Pages of the site that are made from the code: command line, parameters, decisions' index.

A hook of mkdocs. What is written down elsewhere in the project is read there, not typed again.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from typer.cli import get_docs_for_click

sys.path.insert(0, str(Path(__file__).parent))
from docstring_roles import plain_roles

from ratchet.parameters.purposes import declared_purposes

ROOT = Path(__file__).parents[2]
DECISIONS = ROOT / "docs" / "decisions"
FROM_ROOT = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the decisions into the navigation."""
    (built,) = (part["How it is built"] for part in config.nav if "How it is built" in part)
    (entry,) = (part for part in built if "Decisions" in part)
    pages = [f"decisions/{path.name}" for path in sorted(DECISIONS.glob("0*.md"))]
    entry["Decisions"] = ["decisions/index.md", *pages]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    pages = {
        "reference/command_line.md": command_line(),
        "reference/parameters.md": "\n".join(parameters()),
        "decisions/index.md": decisions(),
    }
    for name, source in FROM_ROOT.items():  # their links start from the project's folder
        pages[name] = (ROOT / source).read_text().replace("](docs/", "](")
    for name, content in pages.items():
        files.append(File.generated(config, name, content=content))
    return files


def command_line() -> str:
    """Write down every command with its arguments and options."""
    from flows.cli.main import app

    command = typer.main.get_command(app)
    context = typer.Context(command, info_name="ratchet")
    text = get_docs_for_click(obj=command, ctx=context, name="ratchet", title="Command line")
    return text.replace("...`", "…`").replace("...\n", "…\n")


def decisions() -> str:
    """List the decisions."""
    lines = ["# Decisions", "", "One page each: the context, what was decided, what follows.", ""]
    for path in sorted(DECISIONS.glob("0*.md")):
        title = path.read_text().splitlines()[0].removeprefix("# ")
        number, text = title.split(". ", 1)
        lines.append(f"- [{number}. {text}]({path.name})")
    return "\n".join(lines) + "\n"


def parameters() -> Iterator[str]:
    """Write a table for each section of the parameters, for agents and for the settings."""
    from ratchet.parameters import ExperimentSettings, HyperParameters
    from ratchet.parameters.base import AGENT_MODELS, SECTIONS
    from ratchet.parameters.discovery import load_plugins

    load_plugins()
    yield (Path(__file__).parent / "parameters.md").read_text()
    yield from _table("At the top", HyperParameters, "")
    yield "\n## Sections\n"
    for name, section in sorted(SECTIONS.items()):
        yield from _table(f"`{name}`", section.model, f"{name}.", level=3)
    yield "\n## Agents\n\n`agents.NAME.…`, or `agents._default.…` for all; which there are follows"
    yield "from the scenario.\n"
    for scenario, model in sorted(AGENT_MODELS.items()):
        yield from _table(f"Agents of `{scenario}`", model, "agents.NAME.", level=3)
    yield from _table("Settings", ExperimentSettings, "settings.")


def _table(title: str, model: type[BaseModel], prefix: str, level: int = 2) -> Iterator[str]:
    yield f"\n{'#' * level} {title}\n"
    yield f"{_text(model)}\n"
    yield "| name | type | default | read for |"
    yield "| --- | --- | --- | --- |"
    purposes = declared_purposes(model)
    for name, field in model.model_fields.items():
        read_for = ", ".join(sorted(each.value for each in purposes.get(name) or ()))
        yield f"| `{prefix}{name}` | {_kind(field)} | {_default(field)} | {read_for} |"


def _text(model: type[BaseModel]) -> str:
    """Return a model's docstring up to its first numpydoc section."""
    text = inspect.cleandoc(model.__doc__ or "")
    return plain_roles(text.split("\n\nRaises\n")[0])


def _kind(field: FieldInfo) -> str:
    """Return a field's type as one reads it, with its bounds."""
    kind = field.annotation
    name = kind.__name__ if isinstance(kind, type) else str(kind)
    for prefix in ("typing.", "ratchet.parameters.", "ratchet.scenarios."):
        name = name.replace(prefix, "")
    return f"`{name}`"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if value is PydanticUndefined:
        value = field.default_factory() if field.default_factory is not None else None
    if isinstance(value, BaseModel):
        return "its own"
    text = str(value) if not isinstance(value, str) else value or '""'
    return f"`{text}`"
