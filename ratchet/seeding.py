"""Random generators seeded by (seed, stage, iteration, purpose, agent), independent of history.

Every stage uses them. Heavy libraries are imported inside functions, since the command line imports
this package.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch


def derive_seed(
    seed: int, stage: str, iteration: int = 0, purpose: str = "", agent: str = ""
) -> int:
    """Return an independent 63-bit seed for one purpose in one iteration of one stage.

    It is the first 63 bits of the SHA-256 of the five values.
    """
    text = "\x1f".join((str(int(seed)), stage, str(int(iteration)), purpose, agent))
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def service_seed(
    seed: int, stage: str, iteration: int = 0, purpose: str = "", agent: str = ""
) -> int:
    """Return a 31-bit seed from :func:`derive_seed`, accepted by every language-model service."""
    return derive_seed(seed, stage, iteration, purpose, agent) & (1 << 31) - 1


def torch_generator(
    seed: int,
    stage: str,
    iteration: int = 0,
    purpose: str = "",
    agent: str = "",
    *,
    device: str | torch.device = "cpu",
) -> torch.Generator:
    """Return a torch generator seeded by :func:`derive_seed`."""
    import torch

    generator = torch.Generator(device=device)
    generator.manual_seed(derive_seed(seed, stage, iteration, purpose, agent))
    return generator


def numpy_generator(
    seed: int, stage: str, iteration: int = 0, purpose: str = "", agent: str = ""
) -> np.random.Generator:
    """Return a NumPy generator (PCG64) seeded by :func:`derive_seed`."""
    import numpy as np

    return np.random.default_rng(derive_seed(seed, stage, iteration, purpose, agent))


def take_global_generators() -> dict[str, Any]:
    """Copy the states of the global generators of random, NumPy and torch."""
    import numpy as np
    import torch

    # Querying an unused device would initialise it: some hundred MB in each process.
    is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call] # of torch
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),  # noqa: NPY002 -- the global generator
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if is_used else [],
    }


def put_global_generators(states: Mapping[str, Any]) -> None:
    """Restore the states that :func:`take_global_generators` returned."""
    import numpy as np
    import torch

    random.setstate(states["python"])
    np.random.set_state(states["numpy"])  # noqa: NPY002 -- the global generator
    torch.set_rng_state(states["torch"])
    if states["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["cuda"])


@contextlib.contextmanager
def seeded_globals(seed: int) -> Iterator[None]:
    """Seed the global generators of random, NumPy and torch, and restore them afterwards.

    For libraries that use the global generators, with seeds of :func:`derive_seed`. Not
    thread-safe.
    """
    import numpy as np
    import torch

    before = take_global_generators()
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 -- the global generator
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:  # manual_seed would queue a seed for every kind of device
        torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        put_global_generators(before)
