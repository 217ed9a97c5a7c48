"""Offline data: initial frames of other policies, from a file or from the library."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.errors import ParameterError
from ratchet.plugins import file_at
from trainers.torchrl.replay import SEPARATOR

if TYPE_CHECKING:
    from tensordict import TensorDict
    from torchrl.data import OfflineToOnlineReplayBuffer

BUFFER = "trainers.torchrl.offline_data.make_offline_to_online_buffer"
_PATH = "replay_buffer.offline_dataset"
_LIBRARY = ("minari:", "d4rl:")
_FLAGS = ("done", "terminated")
_KEYS = ("observation", "action", *(f"next/{n}" for n in ("observation", "reward", *_FLAGS)))


def make_offline_to_online_buffer(
    offline_dataset: str | None,
    online_capacity: int,
    offline_fraction: float = 0.5,
    batch_size: int | None = None,
    device: str = "cpu",
    base_dir: Path | str | None = None,
) -> OfflineToOnlineReplayBuffer:
    """Create a buffer that mixes offline frames with collected ones.

    Parameters
    ----------
    offline_dataset
        A ``.safetensors`` file of N frames, named as in the replay buffers of stored stages:
        ``observation`` [N, D], ``action`` [N, K], ``next/observation``, ``next/reward``,
        ``next/done`` and ``next/terminated`` [N, 1]; or the id of a library dataset,
        ``minari:…`` or ``d4rl:…``.
    online_capacity
        The capacity for collected frames.
    offline_fraction
        The initial share of offline frames in a sample.
    batch_size
        The size of a sample.
    device
        The device of frames.
    base_dir
        The folder of relative paths.
    """
    from torchrl.data import LazyTensorStorage, OfflineToOnlineReplayBuffer, ReplayBuffer

    name = _required_name(offline_dataset)
    offline: str | ReplayBuffer = name
    if not reads_library_data(name):
        frames = _read(_existing_file(name, base_dir))
        offline = ReplayBuffer(storage=LazyTensorStorage(len(frames), device=device))
        offline.extend(frames)
    return OfflineToOnlineReplayBuffer(
        offline,
        online_storage=LazyTensorStorage(online_capacity, device=device),
        offline_fraction=offline_fraction,
        batch_size=batch_size,
    )


def reads_library_data(offline_dataset: str | None) -> bool:
    """Return whether offline data come from the library, which may download them."""
    return str(offline_dataset).startswith(_LIBRARY)


def data_key(offline_dataset: str | None) -> str:
    """Return the key content of offline data: a file's SHA-256, or the library's id."""
    name = _required_name(offline_dataset)
    if reads_library_data(name):
        return name
    file = _existing_file(name)
    file_status = file.stat()
    return _digest(file, file_status.st_mtime_ns, file_status.st_size)


@lru_cache(maxsize=64)
def _digest(file: Path, _changed: int, _size: int) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _required_name(offline_dataset: str | None) -> str:
    if not offline_dataset:
        raise ParameterError(
            f"{_PATH}: got {offline_dataset!r}, expected the initial data: a .safetensors"
            " file of frames, e.g. a stored stage's replay buffer, or 'minari:ID' or 'd4rl:ID'."
        )
    return offline_dataset


def _existing_file(name: str, base_dir: Path | str | None = None) -> Path:
    file = file_at(name, base_dir)
    if not file.is_file():
        raise ParameterError(
            f"{_PATH}: {file} does not exist, expected a .safetensors file of frames, or"
            " 'minari:ID' or 'd4rl:ID'. Relative paths start from the experiment file's folder."
        )
    return file


def _read(file: Path) -> TensorDict:
    """Read the frames that SAC needs, without other entries of the recorded policy."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file
    from tensordict import TensorDict

    try:
        tensors = load_file(file)
    except SafetensorError as error:
        raise ParameterError(
            f"{_PATH}: {file} cannot be read as safetensors: {error}. Write it with"
            " safetensors.torch.save_file."
        ) from error
    missing = [key for key in _KEYS if key not in tensors]
    if missing:
        raise ParameterError(
            f"{_PATH}: {file} has {sorted(tensors)}, expected {list(_KEYS)}: {missing} are missing."
        )
    frames = {key: tensors[key] for key in _KEYS}
    for key in ("next/reward", *(f"next/{flag}" for flag in _FLAGS)):
        frames[key] = frames[key].reshape(-1, 1)
    return TensorDict(frames, [len(frames["action"])]).unflatten_keys(SEPARATOR)
