"""``ExperimentSettings``: all that must not change an experiment's result."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    field_validator,
)

from ratchet.errors import CalledHere, ParameterError
from ratchet.parameters.base import SubParameters
from ratchet.parameters.messages import describe_validation_error

MirrorKind = Literal["mlflow", "tensorboard", "wandb"]
"""What run folders can be mirrored to."""


_LONGEST_NAME, _LONGEST_PATH = 255, 4000


def is_possible_path(value: str) -> bool:
    """Return whether a text may be a path: no NUL, and no part longer than file systems allow."""
    longest = max(len(os.fsencode(part)) for part in (*Path(value).parts, ""))
    return "\0" not in value and longest <= _LONGEST_NAME and len(value) <= _LONGEST_PATH


class ExperimentSettings(CalledHere, SubParameters):
    """Where and how an experiment runs. Never part of a stage's key.

    ``home`` is the folder for everything Ratchet keeps for itself (store, databases, Prefect);
    ``runs`` the folder of readable run folders. ``store`` is a folder or any fsspec URL,
    ``<home>/store`` when not given. Relative paths of plug-in files start from ``base_dir``,
    the experiment file's folder. Of ``num_rollout_samples`` rollouts of chat models in each
    iteration and test the run folder and the report show what was said, of all when not given;
    the store keeps all. ``mirrors`` are what the run folder is mirrored to, unless ``tracking`` is
    off. ``budget`` is in the currency of the table of ``prices``, a file
    whose models come on top of the built-in ones.

    ``job_listing_seconds`` is how long a service may take to list a fine-tune job that it has
    taken: so long is one looked for whose answer got lost, or whose run was killed, before it is
    made again. No service promises a time; the default is far above what they are seen to take.
    A job that has not changed for ``job_stall_seconds`` ends the waiting if its service says at
    ``/health`` that it is degraded; where services say nothing of it, queues may be long.

    Every ``system_metrics_seconds`` a run notes for MLflow how busy the machine is; null: never.

    With a store at a URL ``lease_seconds`` is how long other machines wait for one that makes a
    stage and of which they hear nothing, before they make it themselves.

    A stage that gives no sign of life for ``stall_seconds`` is told of; by default for ten minutes,
    or for five times as long as such a stage takes in this run.

    ``runner`` is where work runs that needs nothing of other work, members of a sweep and arms of
    a run: ``inline`` in this process, one after the other; in ``processes`` of this machine; on a
    cluster of ``dask`` or ``ray``, the one at ``cluster_address`` or one that this machine starts;
    members also as flow runs of the ``work_pool`` of that name. ``max_parallel`` is how much runs
    at once: by default as much as the machine has cores, or the cluster has workers.
    """

    called_here: ClassVar[Mapping[str, str]] = {
        "artifact_logger": "trainer._add_file_to_artifact(name, type, path) keeps a file",
        "do_not_load_checkpoint": "a run goes on only where its stage was interrupted",
        "global_tqdm_step_fn": "iteration_context.step() counts for all bars",
        "ignore_cache": "`ratchet run --force` makes everything anew",
        "logger": "use logging.getLogger(__name__)",
        "stat_logger": "trainer.log_stats(stats, iteration=…, stage=…) records them",
        "tqdm_func": "decorate the loop with attach_progress_bar",
        "wandb_run": "settings.mirrors=[mlflow, wandb]; trainer.log_stats records metrics",
    }

    home: str = ".ratchet"
    runs: str = "runs"
    base_dir: str | None = None
    store: str | None = None
    lease_seconds: PositiveFloat = 60.0
    tracking_uri: str | None = None
    tracking: bool = True
    mirrors: list[MirrorKind] = Field(default=["mlflow"], min_length=1)
    system_metrics_seconds: PositiveFloat | None = 10.0
    experiment_name: str | None = None
    run_id: str | None = None
    parent_run_id: str | None = None
    tags: dict[str, str] = Field(default_factory=dict)
    device: str = "cpu"
    num_threads: PositiveInt = 1
    iterations_per_task: PositiveInt = 10
    num_rollout_workers: PositiveInt = 4
    pin_memory: bool = False
    pretrained_embeddings_batch_size: PositiveInt = 256
    num_rollout_samples: NonNegativeInt | None = None
    rollout_sample_period: PositiveInt | None = None
    checkpoint_period: PositiveInt | None = None
    requests_per_minute: PositiveInt | None = None
    tokens_per_minute: PositiveInt | None = None
    request_seconds: PositiveFloat = 600.0
    poll_seconds: PositiveFloat = 5.0
    poll_seconds_max: PositiveFloat = 60.0
    job_listing_seconds: NonNegativeFloat = 120.0
    job_stall_seconds: PositiveFloat = 600.0
    stall_seconds: PositiveFloat | None = None
    budget: PositiveFloat | None = None
    prices: str | None = None
    runner: Literal["inline", "processes", "dask", "ray", "work_pool"] = "inline"
    max_parallel: PositiveInt | None = None
    cluster_address: str | None = None
    work_pool: str = "ratchet"
    retries: NonNegativeInt = 3
    retry_delay_seconds: float = Field(default=1.0, ge=0)
    profiler: bool = False
    progress: Literal["auto", "bar", "plain", "none"] = "auto"
    test_run: bool = False

    @field_validator("home", "runs", "base_dir", "store", "prices")
    @classmethod
    def _is_a_path(cls, value: str | None) -> str | None:
        if value is not None and "://" not in value and not is_possible_path(value):
            raise ValueError("expected a path; its parts have at most 255 bytes")
        return value

    @field_validator("run_id")
    @classmethod
    def _is_a_name(cls, value: str | None) -> str | None:
        if value is None or (is_possible_path(value) and Path(value).name == value):
            return value
        raise ValueError("expected the name of a folder, without / and of at most 255 bytes")

    @field_validator("home", "runs")
    @classmethod
    def _is_a_folder(cls, value: str) -> str:
        if "://" in value:
            raise ValueError("expected a folder on this machine; only `store` may be a URL")
        return value

    @property
    def store_url(self) -> str:
        """The store's folder or URL: ``<home>/store`` when not given."""
        return self.store or str(Path(self.home) / "store")

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Make settings from plain data.

        Raises
        ------
        ParameterError
            With the dotted path, the value and what was expected.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            message = describe_validation_error(error, prefix="settings", model=cls)
            raise ParameterError(message) from error
