"""Files that a trainer adds to its run by itself: kept in the run folder, mirrored to MLflow.

Trainers stand on it, so it knows the folder's place and nothing else of a run.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from ratchet.errors import ParameterError

ARTIFACTS_FOLDER = "artifacts"


def add_artifact(run_folder: Path, name: str, kind: str, file: Path) -> Path:
    """Copy a file to ``artifacts/KIND/NAME/`` of a run; return the copy's path.

    A file of the same name is replaced; folders are made if need be.

    Raises
    ------
    ParameterError
        If name or kind cannot be a folder's name, or there is no such file.
    """
    for what, given in (("name", name), ("type", kind)):
        if not given or Path(given).name != given:
            raise ParameterError(f"artifact {what}: got {given!r}, expected a file's name.")
    if not file.is_file():
        raise ParameterError(f"artifact {name!r}: got {file}, expected a file that is there.")
    folder = run_folder / ARTIFACTS_FOLDER / kind / name
    folder.mkdir(parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(dir=folder.parent, prefix=f".{name}-")
    os.close(handle)
    shutil.copyfile(file, aside)
    os.chmod(aside, 0o644)
    os.replace(aside, folder / file.name)
    return folder / file.name
