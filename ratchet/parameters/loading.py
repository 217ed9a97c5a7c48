"""Where earlier programs find ``load_experiment``; it lives in :mod:`ratchet.experiment_files`."""

from __future__ import annotations

from ratchet.lazy import lazy_names

__getattr__ = lazy_names(
    __name__,
    {name: "ratchet.experiment_files.loading" for name in ("ExperimentFile", "load_experiment")},
)
