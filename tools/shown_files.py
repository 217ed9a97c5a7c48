"""Rewrite the blocks of README.md and docs/ that show a file.

    python tools/shown_files.py [--check]

A block whose title is a path, such as ```python title="examples/fork.py", contains this file, so
that pages show it on the site and in the repository. With ``--check``, nothing is written.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMMAND = "python tools/shown_files.py"
_BLOCK = re.compile(r'^(```\w+ title="([^"\n]+/[^"\n]+)"\n)(.*?)^```$', re.MULTILINE | re.DOTALL)


def pages(root: Path = ROOT) -> list[Path]:
    """Return README.md and all pages in docs/."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def shown_files(text: str) -> list[str]:
    """Return the paths of the files that a page shows."""
    return [match[2] for match in _BLOCK.finditer(text)]


def with_current_files(text: str, root: Path = ROOT) -> str:
    """Return a page in which each titled block contains its file."""

    def current(match: re.Match[str]) -> str:
        path = root / match[2]
        if not path.is_file():
            raise ValueError(
                f"a block has the title {match[2]}, which is no file. Change the title."
            )
        content = path.read_text("utf-8")
        if "```" in content:
            raise ValueError(f"a block cannot show {match[2]}, which contains ```. Link to it.")
        return f"{match[1]}{content.rstrip()}\n```"

    return _BLOCK.sub(current, text)


def main() -> None:
    """Rewrite pages whose blocks differ from the files; exit with 1 if --check finds any."""
    parser = argparse.ArgumentParser(description="Rewrite the blocks of pages that show a file.")
    parser.add_argument("--check", action="store_true", help="list outdated pages, write nothing")
    check = parser.parse_args().check
    outdated = []
    for page in pages():
        text = page.read_text("utf-8")
        current = with_current_files(text)
        if current != text:
            outdated.append(str(page.relative_to(ROOT)))
            if not check:
                page.write_text(current, "utf-8")
    if check and outdated:
        raise SystemExit(f"blocks differ from their files: {', '.join(outdated)}. Run: {COMMAND}")


if __name__ == "__main__":
    main()
