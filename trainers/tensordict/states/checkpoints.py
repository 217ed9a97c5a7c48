"""Checkpoints of a run in its own folder: state, parameters, and what else is known."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.tracking.checkpoint_folders import METADATA_FILE, PARAMETERS_FILE, STATE_FOLDER
from trainers.tensordict.states.state import State

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters


def write_checkpoint(
    base: Path, state: State, hyper_params: HyperParameters, metadata: Mapping[str, Any]
) -> None:
    """Write a checkpoint aside and put it in the place of the one before.

    ``base`` is the run's checkpoint folder, or that of one of its versions.
    """
    base.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{base.name}-", dir=base.parent))
    state.save(aside / STATE_FOLDER)
    _write_json(aside / PARAMETERS_FILE, hyper_params.to_saved_dict())
    _write_json(aside / METADATA_FILE, metadata)
    old = base.with_name(f".{base.name}-old")
    shutil.rmtree(old, ignore_errors=True)
    if base.exists():
        os.replace(base, old)
    os.replace(aside, base)
    shutil.rmtree(old, ignore_errors=True)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps(content, indent=1, sort_keys=True)
    path.write_text(text + "\n", encoding="utf-8")
