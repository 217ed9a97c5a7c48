"""``ExperimentSettings``: settings that do not affect an experiment's result."""

from __future__ import annotations

import os
import re
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

from ratchet.errors import ParameterError, RenamedAttributes, UnknownNameError
from ratchet.parameters.base import SubParameters
from ratchet.parameters.reading.messages import describe_validation_error
from ratchet.tracking.files import is_safe_name
from ratchet.tracking.mirrors.base import MIRRORS

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://.")
_LONGEST_NAME, _LONGEST_PATH = 255, 4000


def is_possible_path(value: str) -> bool:
    """Return whether a text may be a path: no NUL, no part longer than file systems allow."""
    longest = max(len(os.fsencode(part)) for part in (*Path(value).parts, ""))
    return "\0" not in value and longest <= _LONGEST_NAME and len(value) <= _LONGEST_PATH


class ExperimentSettings(RenamedAttributes, SubParameters):
    """Settings of a run that do not affect its result; never part of a stage's key.

    ``store`` is a folder or any fsspec URL, ``<home>/store`` when not given. Relative paths of
    plug-in files start from ``base_dir``, the experiment file's folder. The run folder and the
    report show transcripts of ``num_rollout_samples`` rollouts of chat models in each iteration and
    test, by default of all; the store contains all. ``mirrors`` are the systems that the run folder
    is mirrored to, unless ``tracking`` is off: names of ``ratchet list mirrors`` or
    ``path/to/file.py:Class``. ``budget`` is in the currency of the table of ``prices``, a file
    whose models are added to the built-in ones.

    ``paid_code_changes`` sets how a run treats stored stages that cost money and were computed with
    other code: stop before them, keep them, or recompute them.

    ``job_listing_seconds`` is the time within which a service lists a fine-tune job that it has
    accepted: a job whose response was lost, or whose run was killed, is searched for this long
    before it is created again. No service guarantees a time; the default is far above observed
    ones. Waiting for a job that has not changed for ``job_stall_seconds`` ends if its service
    reports at ``/health`` that it is degraded; otherwise queues may be long.

    ``description`` describes the experiment in the report; by default it is the comment at the
    start of the experiment file.

    Every ``system_metrics_seconds`` a run records system metrics for MLflow; null: never.

    With a store at a URL ``lease_seconds`` is how long other machines wait for a silent machine
    that computes a stage before they compute it themselves.

    A stage without a sign of life for ``stall_seconds`` is reported as stalled; by default ten
    minutes, or five times the usual duration of such a stage in this run.

    ``runner`` executes independent work, members of a sweep and arms of a run: ``inline``
    sequentially in this process; in ``processes`` of this machine; on a cluster of ``dask`` or
    ``ray``, the one at ``cluster_address`` or one that this machine starts; members also as flow
    runs of the ``work_pool`` of that name. A ``ray`` cluster at ``cluster_address`` also runs the
    processes of ``language.train_service.world_size``, except for a sweep's members.
    ``max_parallel`` is the number of concurrent executions: by default the number of cores of the
    machine, or of workers of the cluster.

    - ``home``: folder of Ratchet's internal files (store, databases, Prefect).
    - ``runs``: folder of readable run folders.
    - ``tracking_uri``: URI of MLflow; the server of ``ratchet up``, or a database in the home, when
      not given.
    - ``experiment_name``: name of the MLflow experiment; the experiment file's name when not given.
    - ``run_id``: id of the run; computed from the parameters when not given.
    - ``parent_run_id``: run or sweep below which MLflow lists the run.
    - ``tags``: tags of the run in MLflow.
    - ``device``: device of the networks: cpu, cuda, cuda:N or mps.
    - ``deterministic``: use deterministic algorithms on an accelerator, so that a resumed run
      equals an uninterrupted one bit for bit. False selects torch's default algorithms.
    - ``num_threads``: number of CPU threads of torch.
    - ``iterations_per_task``: number of iterations of a training stage.
    - ``num_rollout_workers``: number of chat-model episodes that run concurrently.
    - ``pin_memory``: copy data to an accelerator through page-locked memory.
    - ``recompute_activations``: compute the activations of transformers models again in the
      backward pass instead of keeping them, which saves memory and takes time; when not given, of
      models of 100 million parameters or more on a GPU.
    - ``pretrained_embeddings_batch_size``: number of images that a vision backbone embeds at a
      time.
    - ``rollout_sample_period``: number of iterations after which training rollouts are saved; null:
      never.
    - ``checkpoint_period``: number of iterations after which a state is stored, in addition to
      those after every ``iterations_per_task`` iterations and the last; null: no further states.
    - ``state_retention``: which states of language models that are trained here stay on disk:
      ``all``, or only those at ``checkpoints``, the multiples of ``checkpoint_period``, and the
      last two. Tensors of the others are deleted once a newer state is stored, unless another run
      or arm uses them; ``ratchet restore`` computes one again.
    - ``rank_seconds``: time that a process of ``language.train_service.world_size`` waits for the
    others before the step fails.
    - ``requests_per_minute``: maximum rate of requests to a chat-model service.
    - ``tokens_per_minute``: maximum rate of tokens in requests to a chat-model service.
    - ``request_seconds``: time limit of a request to a chat-model service.
    - ``poll_seconds``: initial interval between queries for a job's status, which grows.
    - ``poll_seconds_max``: maximum interval between queries for a job's status.
    - ``retries``: number of repetitions of a failed stage.
    - ``retry_delay_seconds``: pause before a stage is repeated.
    - ``profiler``: write a profile of each stage to the run folder, except stages that may run
      concurrently with others, such as those of chat models.
    - ``progress``: kind of progress display.
    - ``test_run``: shorten every loop to one step, to test that an experiment runs.
    - ``tracking``: mirror the run folder.
    - ``mirrors``: systems that the run folder is mirrored to: registered names or
      ``path/to/file.py:Class``.
    - ``budget``: maximum cost of a run's calls and jobs; null: unlimited.
    - ``prices``: file with a table of prices that is added to the built-in one.
    - ``runner``: place in which members of a sweep and arms of a run are executed.
    - ``cluster_address``: address of a Dask or Ray cluster; this machine starts one when not given.
    - ``work_pool``: name of the work pool with ``runner: work_pool``.
    """

    renamed_attributes: ClassVar[Mapping[str, str]] = {
        "artifact_logger": "trainer._add_file_to_artifact(name, type, path) saves a file",
        "do_not_load_checkpoint": "a run resumes only from its interrupted stage",
        "global_tqdm_step_fn": "iteration_context.step() counts for all bars",
        "ignore_cache": "`ratchet run --recompute` recomputes all stages",
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
    mirrors: list[str] = Field(default=["mlflow"], min_length=1)
    system_metrics_seconds: PositiveFloat | None = 10.0
    experiment_name: str | None = None
    run_id: str | None = None
    parent_run_id: str | None = None
    tags: dict[str, str] = Field(default_factory=dict)
    description: str | None = None
    device: str = "cpu"
    deterministic: bool = True
    num_threads: PositiveInt = 1
    iterations_per_task: PositiveInt = 10
    num_rollout_workers: PositiveInt = 4
    pin_memory: bool = False
    recompute_activations: bool | None = None
    pretrained_embeddings_batch_size: PositiveInt = 256
    num_rollout_samples: NonNegativeInt | None = None
    rollout_sample_period: PositiveInt | None = None
    checkpoint_period: PositiveInt | None = None
    state_retention: Literal["all", "checkpoints"] = "all"
    rank_seconds: PositiveFloat = 1800.0
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
    paid_code_changes: Literal["stop", "keep", "recompute"] = "stop"
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
        if value is None or is_safe_name(value):
            return value
        raise ValueError(
            "expected the name of a folder: letters, digits, '_', '.' and '-', not starting with"
            " '.' or '-', of at most 255 bytes"
        )

    @field_validator("tracking_uri")
    @classmethod
    def _is_a_uri(cls, value: str | None) -> str | None:
        if value is None or _URI.match(value) or value in ("databricks", "databricks-uc"):
            return value
        raise ValueError("expected a URI of MLflow, such as http://host:5000 or sqlite:///file.db")

    @field_validator("mirrors")
    @classmethod
    def _are_known(cls, kinds: list[str]) -> list[str]:
        for kind in kinds:
            try:
                MIRRORS.check(kind)
            except UnknownNameError as error:
                raise ValueError(
                    str(error).removeprefix("settings.mirrors: ").rstrip(".")
                ) from error
        return kinds

    @field_validator("home", "runs")
    @classmethod
    def _is_a_folder(cls, value: str) -> str:
        if "://" in value:
            raise ValueError("expected a folder on this machine; only `store` may be a URL")
        return value

    @property
    def rank_cluster(self) -> str | None:
        """Address of the Ray cluster that runs the processes of ``world_size``, if any."""
        return self.cluster_address if self.runner == "ray" else None

    @property
    def store_url(self) -> str:
        """The store's folder or URL: ``<home>/store`` when not given."""
        return self.store or str(Path(self.home) / "store")

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Create settings from plain data.

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
