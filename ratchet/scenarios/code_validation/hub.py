"""Read examples from the Hugging Face hub, or from a local copy of a dataset there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ratchet.scenarios.code_validation.loaders import LoadingOptions, Row, rows_to_examples
from ratchet.scenarios.hub import load_hub_splits

if TYPE_CHECKING:
    from ratchet.scenarios.code_validation.generator.examples import Example


def load_hub_examples(name: str, options: LoadingOptions) -> dict[str, list[Example]]:
    """Read a dataset with ``datasets``: examples by split.

    Raises
    ------
    DataError
        If it can't be read, or a row has another layout than ``loaders`` knows.
    """
    splits = load_hub_splits(name, "dataset=hub:FOLDER")
    return {
        split: rows_to_examples(_places(rows, f"{name}[{split}]"), options)
        for split, rows in splits.items()
    }


def _places(rows: Iterable[Row], name: str) -> Iterator[tuple[str, Row]]:
    for index, row in enumerate(rows):
        yield f"{name} row {index}", row
