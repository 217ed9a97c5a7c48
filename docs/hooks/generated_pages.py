"""MkDocs hook that generates pages: gallery, command line, parameters, reanalysis, decisions.

The pages are generated from the code and the decisions' files, so they cannot become outdated.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.cli import get_docs_for_click

sys.path.insert(0, str(Path(__file__).parent))
import gallery
import reanalysis
from docstring_roles import plain_roles

from ratchet.parameters.reference import DocumentedSection, documented_sections

ROOT = Path(__file__).parents[2]
DECISIONS = ROOT / "docs" / "decisions"
FROM_ROOT = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the decisions to the navigation."""
    (built,) = (part["How it is built"] for part in config.nav if "How it is built" in part)
    (entry,) = (part for part in built if "Decisions" in part)
    pages = [f"decisions/{path.name}" for path in sorted(DECISIONS.glob("0*.md"))]
    entry["Decisions"] = ["decisions/index.md", *pages]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    pages = {
        "reference/command_line.md": command_line(),
        "reference/parameters.md": "\n".join(parameters()),
        "decisions/index.md": decisions(),
        "gallery.md": gallery.page(),
        "results/reanalysis.md": reanalysis.page(),
        **gallery.figures(),
    }
    for name, source in FROM_ROOT.items():  # their links are relative to the project's folder
        pages[name] = (ROOT / source).read_text().replace("](docs/", "](")
    for name, content in pages.items():
        files.append(File.generated(config, name, content=content))
    return files


def command_line() -> str:
    """Return every command with its arguments and options."""
    from flows.cli.main import app

    command = typer.main.get_command(app)
    context = typer.Context(command, info_name="ratchet")
    text = get_docs_for_click(obj=command, ctx=context, name="ratchet", title="Command line")
    return text.replace("...`", "…`").replace("...\n", "…\n")


def decisions() -> str:
    """Return the index of decisions."""
    lines = ["# Decisions", "", "One page each: context, decision, consequences.", ""]
    for path in sorted(DECISIONS.glob("0*.md")):
        title = path.read_text().splitlines()[0].removeprefix("# ")
        number, text = title.split(". ", 1)
        lines.append(f"- [{number}. {text}]({path.name})")
    return "\n".join(lines) + "\n"


def parameters() -> Iterator[str]:
    """Yield a table for each section of the parameters, for agents and for the settings."""
    yield (Path(__file__).parent / "parameters.md").read_text()
    sections = list(documented_sections())
    for section in sections:
        kind = section.kind
        if section.kind == "section" and section is _first(sections, "section"):
            yield "\n## Sections\n"
        if section.kind == "agents" and section is _first(sections, "agents"):
            yield "\n## Agents\n\n`agents.NAME.…`, or `agents._default.…` for all; the scenario"
            yield "sets the names.\n"
        if section.kind == "phases" and section is _first(sections, "phases"):
            yield "\n## Phases\n\nA list, see the [guide](../guides/curricula.md). On the command"
            yield "line, a phase is selected by name.\n"
        title = _TITLES[kind].format(section.name)
        yield from _table(title, section, level=2 if kind in ("top", "settings") else 3)


_TITLES = {
    "top": "Top level",
    "section": "`{}`",
    "agents": "Agents of `{}`",
    "phases": "`{}`",
    "settings": "Settings",
}


def _first(sections: list[DocumentedSection], kind: str) -> DocumentedSection:
    return next(section for section in sections if section.kind == kind)


def _table(title: str, section: DocumentedSection, level: int) -> Iterator[str]:
    yield f"\n{'#' * level} {title}\n"
    yield f"{plain_roles(section.text)}\n"
    yield "| name | description | type | default | purposes |"
    yield "| --- | --- | --- | --- | --- |"
    for each in section.parameters:
        default = each.default if each.default in ("required", "") else f"`{each.default}`"
        kind, purposes = each.type.replace("|", "\\|"), ", ".join(each.read_for)
        description = each.description.replace("|", "\\|")
        yield f"| `{each.path}` | {description} | `{kind}` | {default} | {purposes} |"
