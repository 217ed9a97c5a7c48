"""Deprecated path of :mod:`ratchet.algorithms`: documented modules are re-exported below."""

import warnings

warnings.warn(
    "trainers.algorithms has moved: import from ratchet.algorithms instead.",
    DeprecationWarning,
    stacklevel=2,
)
