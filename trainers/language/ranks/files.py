"""Files through which processes exchange messages, and their content for other machines."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from errno import EDQUOT, ENOSPC
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ratchet.errors import RankError

REQUEST_NAME = "request"
MODEL_FOLDER = "model"
FileContents: TypeAlias = Mapping[str, NDArray[np.uint8]]
"""File name → bytes."""


class ProcessFolder:
    """A temporary folder that is deleted with this object, or when its process ends."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="ratchet-ranks-"))
        # in the background, since Ray kills the children of its workers
        command = 'exec 3<&0; (cat <&3; rm -rf "$1") &'
        self._deletion = subprocess.Popen(
            ["sh", "-c", command, "sh", str(self.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._deletion.wait()


def answer_name(rank: int) -> str:
    """Return the base name of the files of a rank's answer."""
    return f"rank{rank}"


def read_files(folder: Path, pattern: str = "*") -> FileContents:
    """Read the files of a folder."""
    return {path.name: np.fromfile(path, np.uint8) for path in folder.glob(pattern)}


def write_files(files: FileContents, folder: Path) -> None:
    """Write the result of :func:`read_files`; raises RankError if the file system is full."""
    folder.mkdir(exist_ok=True)
    with full_disk_named(folder, lambda: sum(content.nbytes for content in files.values())):
        for name, content in files.items():
            (folder / name).write_bytes(content.data)


@contextmanager
def full_disk_named(folder: Path, size: Callable[[], int]) -> Iterator[None]:
    """Raise RankError if a file system is too full for files of a size."""
    try:
        yield
    except Exception as error:
        # safetensors raises its own errors
        if not any(os.strerror(number) in str(error) for number in (ENOSPC, EDQUOT)):
            raise
        free = shutil.disk_usage(folder).free
        raise RankError(
            f"{folder}: no space left for the files of language.train_service.world_size: needs"
            f" {size()} bytes, {free} are free. Delete files, or set TMPDIR to another folder."
        ) from error
