"""Read examples from the Hugging Face hub, or from a local copy of a dataset there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.errors import DataError
from ratchet.scenarios.code_validation.loaders import LoadingOptions, Row, rows_to_examples

if TYPE_CHECKING:
    from ratchet.scenarios.code_validation.generator.examples import Example


def load_hub_examples(name: str, options: LoadingOptions) -> dict[str, list[Example]]:
    """Read a dataset with ``datasets``.

    Parameters
    ----------
    name
        ``OWNER/NAME`` on the hub, ``OWNER/NAME@REVISION`` of one revision of it, a folder of
        data files, or a folder that ``save_to_disk`` wrote.
    options
        Which rows are used.

    Returns
    -------
    dict
        Examples by split.

    Raises
    ------
    DataError
        If it can't be read, or a row has another layout than ``loaders`` knows.
    """
    splits = _load_splits(name)
    return {
        str(split): rows_to_examples(_places(rows, f"{name}[{split}]"), options)
        for split, rows in splits.items()
    }


def _places(rows: Iterable[Row], name: str) -> Iterator[tuple[str, Row]]:
    for index, row in enumerate(rows):
        yield f"{name} row {index}", row


def _load_splits(name: str) -> Mapping[str, Iterable[Row]]:
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"dataset hub:{name}: reading it needs the package datasets. Install it with:"
            " pip install 'ratchet-experiments[hub]'"
        ) from error
    folder = Path(name).expanduser()
    try:
        if folder.is_dir():
            saved = (folder / "dataset_dict.json").exists() or (folder / "state.json").exists()
            load = datasets.load_from_disk if saved else datasets.load_dataset
            loaded = load(str(folder))
        else:
            repository, _, revision = name.partition("@")
            loaded = datasets.load_dataset(repository, revision=revision or None)
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(
            f"dataset hub:{name}: cannot be read: {type(error).__name__}: {error}. Expected a"
            " dataset on the Hugging Face hub (needs the network once, HF_HUB_OFFLINE unset), or a"
            f" local copy: huggingface-cli download --repo-type dataset {name} --local-dir FOLDER,"
            " then dataset=hub:FOLDER."
        ) from error
    if isinstance(loaded, Mapping):
        return {str(split): rows for split, rows in loaded.items()}
    return {"all": loaded}
