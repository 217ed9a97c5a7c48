"""Settings and limits of a service."""

from __future__ import annotations

import ipaddress
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from ratchet.errors import ParameterError
from ratchet.language_models.training_service.models import UPLOAD_BYTES
from ratchet.models.lora import Lora
from ratchet.service.training.job_folder import HyperParameterValue
from ratchet.service.training.plan import MICRO_BATCH_PARAMETER, SUPERVISED_WEIGHT_PARAMETER

API_KEY_VARIABLE = "RATCHET_LLM_API_KEY"
BASE_MODEL = "ratchet-tiny"
SMALL_MODEL = "ratchet-tiny-small"
"""Of half the width: learns the training examples, but hardly generalises."""
_NAME = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)?")


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on a client's use of the service.

    Parameters
    ----------
    request_bytes
        Size of a JSON request.
    upload_bytes
        Size of an uploaded file, including the form's overhead.
    examples_min, examples_max
        Examples in a training file.
    queued_jobs
        Fine-tuning jobs that wait or run.
    waiting_completions
        Completions that wait for the engine.
    idle_seconds
        Seconds after which a connection is closed that sends nothing, or not the rest of a request;
        long requests get a second more for each ``bytes_per_second``.
    bytes_per_second
        Minimal rate of a request's body.
    loaded_models
        Models that the engine holds at a time, fewer if their memory is short; the least recently
        used is unloaded.
    """

    request_bytes: int = 8 * 2**20
    upload_bytes: int = UPLOAD_BYTES
    examples_min: int = 10
    examples_max: int = 200_000
    queued_jobs: int = 256
    waiting_completions: int = 8192
    idle_seconds: int = 75
    bytes_per_second: int = 4096
    loaded_models: int = 16


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """Retention rules; by default everything is retained.

    Parameters
    ----------
    checkpoints
        Number of a job's checkpoint models to keep, in addition to its final one, and of a training
        session's in addition to its last; None for all.
    days
        Days after their last use until models, files and training sessions are deleted; None for
        never. Those referenced by a run of Ratchet, and those that other models or sessions start
        from, are retained.
    """

    checkpoints: int | None = None
    days: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("checkpoints", self.checkpoints), ("days", self.days)):
            if value is not None and value < 0:
                raise ParameterError(f"keep_{name}: got {value}, expected 0 or more.")


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """Locations, address and models of a service.

    Parameters
    ----------
    home
        Ratchet's home; the service's own folder is ``home / "llm"``.
    host, port
        The address; port 0 selects a free one.
    model
        A folder or a name on the Hugging Face hub; None for the tiny model that Ratchet generates.
    name
        The model's id for clients, such as ``org/model``; None for that of its folder or the hub.
    engine
        The engine: ``torch``, or a custom class as ``module:Class``.
    lora
        The trainable part of a model in fine-tuning jobs that do not choose one.
    micro_batch_size
        Default number of examples in memory during training; None for a complete batch.
    supervised_weight
        Default weight of supervision in addition to DPO; None to choose it by the model.
    retention
        Retention rules; by default all is retained.
    api_key
        The bearer token required from clients; None for no key, on loopback only.
    embedded
        Whether to exit with the last process that uses the service.
    threads
        CPU threads of the engine.
    """

    home: Path
    host: str = "127.0.0.1"
    port: int = 0
    model: str | None = None
    name: str | None = None
    engine: str = "torch"
    lora: Lora = field(default_factory=Lora)
    micro_batch_size: int | None = None
    supervised_weight: float | None = None
    retention: RetentionRules = field(default_factory=RetentionRules)
    api_key: str | None = field(default=None, repr=False)
    embedded: bool = False
    threads: int = 1
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.api_key == "":
            raise ParameterError(f"The service's key is empty. Set {API_KEY_VARIABLE} or unset it.")
        if not self.is_loopback and self.api_key is None:
            raise ParameterError(
                f"The model service cannot listen on {self.host!r} without a key; beyond"
                f" 127.0.0.1 it needs one. Set {API_KEY_VARIABLE} and start it again."
            )
        if self.name is not None and _NAME.fullmatch(self.name) is None:
            raise ParameterError(
                f"name: got {self.name!r}, expected letters, digits, '.', '_' or '-', such as model"
                " or org/model."
            )
        if self.threads < 1:
            raise ParameterError(f"threads: got {self.threads}, expected 1 or more.")
        if self.micro_batch_size is not None and self.micro_batch_size < 1:
            raise ParameterError(
                f"micro_batch_size: got {self.micro_batch_size}, expected 1 or more."
            )
        if self.supervised_weight is not None and not 0 <= self.supervised_weight <= 100:
            raise ParameterError(
                f"supervised_weight: got {self.supervised_weight}, expected 0 to 100."
            )

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read fields from JSON, but the key from the variable ``RATCHET_LLM_API_KEY``."""
        values = json.loads(text)
        values["home"] = Path(values["home"]).resolve()
        values["lora"] = Lora(**values.get("lora", {}))
        values["retention"] = RetentionRules(**values.get("retention", {}))
        return cls(**values, api_key=os.environ.get(API_KEY_VARIABLE))

    @property
    def job_defaults(self) -> Mapping[str, HyperParameterValue]:
        """The hyper-parameters of fine-tuning jobs that do not set them."""
        defaults = {} if self.lora == Lora() else self.lora.as_hyperparameters()
        if self.micro_batch_size is not None:
            defaults[MICRO_BATCH_PARAMETER] = self.micro_batch_size
        if self.supervised_weight is not None:
            defaults[SUPERVISED_WEIGHT_PARAMETER] = self.supervised_weight
        return defaults

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def folder(self) -> Path:
        """The folder of database, files, jobs and models."""
        return self.home / "llm"

    @property
    def database_file(self) -> Path:
        """The database of models, files and jobs."""
        return self.folder / "service.sqlite3"

    @property
    def models_folder(self) -> Path:
        """The folder of fine-tuned models."""
        return self.folder / "models"
