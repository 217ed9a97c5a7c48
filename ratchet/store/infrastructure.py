"""Modules that transport results but don't affect them: excluded from code fingerprints."""

from __future__ import annotations

import functools

INFRASTRUCTURE: tuple[str, ...] = (
    "flows",
    "ratchet.errors",
    "ratchet.file_reads",
    "ratchet.language_models.budget_reservations",
    "ratchet.language_models.append_log",
    "ratchet.language_models.concurrency",
    "ratchet.language_models.connection",
    "ratchet.language_models.endpoints",
    "ratchet.language_models.job_records",
    "ratchet.language_models.journal",
    "ratchet.language_models.ledger",
    "ratchet.language_models.exactly_once",
    "ratchet.language_models.pricing",
    "ratchet.language_models.rate_limits",
    "ratchet.language_models.retrying",
    "ratchet.language_models.usage",
    "ratchet.lazy",
    "ratchet.parameters.base",
    "ratchet.parameters.compatibility",
    "ratchet.parameters.hyper_parameters",
    "ratchet.parameters.identity",
    "ratchet.parameters.key_inputs",
    "ratchet.parameters.loading",
    "ratchet.parameters.options",
    "ratchet.parameters.purposes",
    "ratchet.parameters.reading",
    "ratchet.parameters.reference",
    "ratchet.parameters.service_fields",
    "ratchet.parameters.settings",
    "ratchet.parameters.sweeps",
    "ratchet.plugins",
    "ratchet.registry",
    "ratchet.shadowing",
    "ratchet.store",
    "ratchet.syntax",
    "ratchet.tracking",
    "tasks.language.keys",
    "tasks.save",
    "tasks.stages",
    "tasks.tensordict.keys",
    "tasks.text.keys",
    "trainers.interruption",
    "trainers.models",
    "trainers.named",
    "trainers.progress",
    "trainers.registry",
    "trainers.torchrl.workers",
)
"""Names of modules and packages; an import contract keeps computation out of them."""


@functools.cache
def is_infrastructure(module: str) -> bool:
    """Return whether a module is infrastructure or in a package of it."""
    return any(module == name or module.startswith(f"{name}.") for name in INFRASTRUCTURE)
