"""How a service is started, and how much it takes on."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from ratchet.errors import ParameterError
from ratchet.models.lora import Lora

API_KEY_VARIABLE = "RATCHET_LLM_API_KEY"
BASE_MODEL = "ratchet-tiny"
SMALL_MODEL = "ratchet-tiny-small"
"""Of half the width: learns what it is shown, and hardly anything by itself."""
TrainerName = Literal["auto", "plain", "trl"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client cannot make the service exceed.

    Parameters
    ----------
    request_bytes
        Size of a JSON request.
    upload_bytes
        Size of an uploaded file, with what the form adds to it.
    examples_min, examples_max
        Examples in a training file.
    queued_jobs
        Fine-tuning jobs that wait or run.
    waiting_completions
        Completions that wait for the engine.
    idle_seconds
        Seconds after which a connection that sends nothing, or not the rest of a request, is
        closed; what is long has a second more for each ``bytes_per_second``.
    bytes_per_second
        How slowly a request's body may come.
    loaded_models
        Models the engine holds at once; the one unused for longest makes room.
    """

    request_bytes: int = 8 * 2**20
    upload_bytes: int = 256 * 2**20
    examples_min: int = 10
    examples_max: int = 200_000
    queued_jobs: int = 256
    waiting_completions: int = 8192
    idle_seconds: int = 75
    bytes_per_second: int = 4096
    loaded_models: int = 16


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """How much is kept; by default everything.

    Parameters
    ----------
    checkpoints
        The models of a job's last epochs, beside its own, that are kept, and of a training
        session's beside its last; None for all.
    days
        After how many days models, files and training sessions go that nobody has used; None for
        never. Those that a run of Ratchet's has asked for stay, and so does what another model
        stands on or a session starts from.

    Raises
    ------
    ParameterError
        If one is negative.
    """

    checkpoints: int | None = None
    days: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("checkpoints", self.checkpoints), ("days", self.days)):
            if value is not None and value < 0:
                raise ParameterError(f"keep_{name}: got {value}, expected 0 or more.")


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """Where a service keeps its things, where it listens, what it serves.

    Parameters
    ----------
    home
        Ratchet's home; the service's own folder is ``home / "llm"``.
    host, port
        Where to listen; port 0 takes a free one.
    model
        A folder or a name on the Hugging Face hub; None for the tiny model that Ratchet makes.
    engine
        What runs the models: ``torch``, ``vllm``, or a class of one's own as ``module:Class``.
    max_loras
        How many adapters ``vllm`` applies in one batch.
    sleep_level
        How ``vllm`` gives its memory away while a job trains: 1 keeps the weights in the machine's
        memory, 2 reads them again, 0 keeps everything where it is.
    trainer
        What runs fine-tuning jobs: ``plain``, ``trl``, or ``auto``: the plain loop for models
        that plain torch runs, TRL for all others and wherever LoRA is asked for.
    lora
        What of a model is trained, where a job does not say so itself.
    micro_batch_size
        How many examples of a batch training holds in memory at once, where a job does not say so
        itself; None for all of them.
    retention
        What is deleted in time; by default nothing.
    api_key
        What clients must send as bearer token; None for no key, on loopback only.
    embedded
        Whether to leave when the last process that uses it has gone.

    Raises
    ------
    ParameterError
        If it would listen beyond this machine without a key; if there is no such trainer, or it
        does not do what is asked.
    """

    home: Path
    host: str = "127.0.0.1"
    port: int = 0
    model: str | None = None
    engine: str = "torch"
    max_loras: int = 4
    sleep_level: int = 1
    trainer: TrainerName = "auto"
    lora: Lora = field(default_factory=Lora)
    micro_batch_size: int | None = None
    retention: RetentionRules = field(default_factory=RetentionRules)
    api_key: str | None = field(default=None, repr=False)
    embedded: bool = False
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.api_key == "":
            raise ParameterError(f"The service's key is empty. Set {API_KEY_VARIABLE} or unset it.")
        if not self.is_loopback and self.api_key is None:
            raise ParameterError(
                f"The model service was told to listen on {self.host!r} without a key; beyond"
                f" 127.0.0.1 it needs one. Set {API_KEY_VARIABLE} and start it again."
            )
        if self.trainer not in get_args(TrainerName):
            known = ", ".join(get_args(TrainerName))
            raise ParameterError(f"trainer: got {self.trainer!r}, expected one of {known}.")
        if self.max_loras < 1 or self.sleep_level not in (0, 1, 2):
            raise ParameterError(
                f"Got max_loras {self.max_loras} and sleep_level {self.sleep_level}, expected 1 or"
                " more, and 0, 1 or 2."
            )
        if self.micro_batch_size is not None and self.micro_batch_size < 1:
            raise ParameterError(
                f"micro_batch_size: got {self.micro_batch_size}, expected 1 or more."
            )
        if self.trainer == "plain" and self.lora.rank:
            raise ParameterError(
                f"The plain trainer trains all weights, but got lora_rank {self.lora.rank}. Take"
                " --trainer trl, or no --lora-rank."
            )

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
        """Where database, files, jobs and models lie."""
        return self.home / "llm"

    @property
    def database_file(self) -> Path:
        """What the service knows of its models, files and jobs."""
        return self.folder / "service.sqlite3"

    @property
    def models_folder(self) -> Path:
        """Where the models lie that jobs have trained."""
        return self.folder / "models"
