"""Generators made of (seed, stage, iteration, purpose, agent): nothing depends on what ran before.

Used by every stage. Heavy libraries are imported inside, since parameters and the command line
stand on the same package.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import torch


def derive_seed(
    seed: int, stage: str, iteration: int = 0, purpose: str = "", agent: str = ""
) -> int:
    """Make an independent 63-bit seed for one purpose in one iteration of one stage.

    It is the first 63 bits of the SHA-256 of the five values.
    """
    text = "\x1f".join((str(int(seed)), stage, str(int(iteration)), purpose, agent))
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def torch_generator(
    seed: int,
    stage: str,
    iteration: int = 0,
    purpose: str = "",
    agent: str = "",
    *,
    device: str | torch.device = "cpu",
) -> torch.Generator:
    """Make a torch generator seeded by :func:`derive_seed`."""
    import torch

    generator = torch.Generator(device=device)
    generator.manual_seed(derive_seed(seed, stage, iteration, purpose, agent))
    return generator


def numpy_generator(
    seed: int, stage: str, iteration: int = 0, purpose: str = "", agent: str = ""
) -> np.random.Generator:
    """Make a NumPy generator (PCG64) seeded by :func:`derive_seed`."""
    import numpy as np

    return np.random.default_rng(derive_seed(seed, stage, iteration, purpose, agent))


@contextlib.contextmanager
def seeded_globals(seed: int) -> Iterator[None]:
    """Seed the global generators of random, NumPy and torch, and put them back afterwards.

    For libraries that draw from the global generators; seeds are :func:`derive_seed`'s. Not for use
    in two threads at once.
    """
    import numpy as np
    import torch

    python_state = random.getstate()
    numpy_state = np.random.get_state()  # noqa: NPY002 -- the global one is meant
    torch_state = torch.get_rng_state()
    # Asking a device that nobody has used would take hold of it: some hundred MB in each process.
    is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call] # of torch
    cuda_states = torch.cuda.get_rng_state_all() if is_used else []
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 -- the global one is meant
    torch.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002 -- the global one is meant
        torch.set_rng_state(torch_state)
        if cuda_states:
            torch.cuda.set_rng_state_all(cuda_states)
