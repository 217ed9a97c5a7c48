"""Agents that share one model: they play with it, and it is trained on what all of them did."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypeVar

from ratchet.errors import (
    DataError,
    FineTuneError,
    FineTuneRefusedError,
    ParameterError,
    RenamedAttributes,
    StateError,
    UnknownNameError,
    nearest,
)
from ratchet.language_models.fine_tune_jobs import (
    FineTuneIntent,
    FineTuneJob,
    FineTuneMethod,
    JobStatus,
)
from ratchet.language_models.fine_tuning import FineTuneClient
from ratchet.language_models.fine_tuning_backends.registry import build_tuning_backend, check_tuning
from ratchet.language_models.pricing import PriceTable
from ratchet.rollouts.nested_array_dict import NestedArrayDict
from ratchet.scenarios.pure_text.agents.examples import (
    Example,
    PreferencePair,
    guess_replaced_examples,
    preference_examples,
    sha256_of,
    supervised_examples,
    timestep_pairs,
    to_lines,
)
from ratchet.scenarios.pure_text.agents.group_state import PureTextSharedModelGroupState
from ratchet.scenarios.pure_text.agents.whole_agent import PureTextWholeAgent
from ratchet.seeding import service_seed

if TYPE_CHECKING:
    from ratchet.language_models.budget_reservations import BudgetReservation
    from ratchet.language_models.usage import UsageMeter
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings

MIN_EXAMPLES = 10
GroupStatus: TypeAlias = JobStatus | Literal["insufficient_data", "frozen"]

_LOGGER = logging.getLogger(__name__)
_SUFFIX_LETTERS = 40
_SHARED_PARAMETERS = (
    "model_name",
    "base_url",
    "api_key_name",
    "api_version",
    "fine_tune_from_scratch",
    "freeze_agent",
    "use_dummy_api",
    "fine_tuning",
    "fine_tuning_service",
)
_Result = TypeVar("_Result")


class PureTextSharedModelGroup(RenamedAttributes):
    """Agents that share one model.

    Parameters
    ----------
    name
        The group's name, see ``shared_model_group`` of the agents' parameters.
    agents
        Its agents, in the protocol's order. They use its model from now on.

    Notes
    -----
    Jobs train ``learning_agents`` only: all, unless a trainer with update schedules sets others. A
    job that ``allowance`` refuses is not created; without one, costs are unlimited. Methods that
    call the service wait for it; those that are not coroutines may be called with or without a
    running event loop.
    """

    renamed_attributes: ClassVar[Mapping[str, str]] = {
        "agent_ids_and_names": "go through group.agents.items(); an agent has agent_index",
        "group_name": "it is group.name",
        "model_name": "it is group.current_model_name",
    }

    def __init__(
        self,
        hyper_params: HyperParameters,
        settings: ExperimentSettings,
        name: str,
        agents: Sequence[PureTextWholeAgent],
    ) -> None:
        _check_agreement(name, agents)
        first = agents[0]
        check_tuning(first.agent_name, first.parameters, first.endpoint, settings.base_dir)
        self.name = name
        self.agents = {agent.agent_name: agent for agent in agents}
        self.learning_agents = frozenset(self.agents)
        self.parameters = agents[0].parameters
        self.endpoint = agents[0].endpoint
        self.allowance: BudgetReservation | None = None
        self._seed = hyper_params.seed
        self._settings = settings
        self._job: FineTuneJob | None = None
        model = self.parameters.model_name
        self._state = PureTextSharedModelGroupState(model, (model,))
        for agent in agents:
            agent.shared_model_group = self

    def __repr__(self) -> str:
        return (
            f"PureTextSharedModelGroup({self.name!r}, agents={list(self.agents)},"
            f" model={self.current_model_name!r})"
        )

    @property
    def agent_names(self) -> list[str]:
        """The agents' names, in the protocol's order."""
        return list(self.agents)

    @property
    def current_model_name(self) -> str:
        """The model that plays now."""
        return self._state.current_model_name

    @property
    def called_as(self) -> str:
        """The name in requests for completions: the model, or its deployment."""
        return self._state.called_as or self.current_model_name

    @property
    def base_model_name(self) -> str:
        """The model before the first job."""
        return self._state.model_names[0]

    @property
    def state(self) -> PureTextSharedModelGroupState:
        """The group's state, an immutable value."""
        return self._state

    @state.setter
    def state(self, state: PureTextSharedModelGroupState) -> None:
        self._state = state
        self._job = None

    def create_supervised_fine_tune_job(
        self,
        rollouts_per_agent: Mapping[str, NestedArrayDict],
        guess_replaced_rollouts: Mapping[str, NestedArrayDict] | None = None,
        *,
        job_name: str | None = None,
    ) -> None:
        """Create the job that trains on selected rollouts, or adopt it if it already exists.

        With fewer than 10 examples, or a frozen group, no job is created; the status reports it.

        Parameters
        ----------
        rollouts_per_agent
            Agent → rollouts, batch [n], to learn from its point of view.
        guess_replaced_rollouts
            Verifier → rollouts in which its last message becomes the true label's decision.
        job_name
            Part of the new model's name, the group's if None; a different name is a different job.
        """
        replaced = guess_replaced_rollouts or {}
        self._check_names({*rollouts_per_agent, *replaced})
        examples: list[Example] = []
        for name, agent in self.agents.items():
            if name not in self.learning_agents:
                continue
            if name in rollouts_per_agent:
                examples += supervised_examples(rollouts_per_agent[name], agent.agent_index)
            if name in replaced:
                examples += guess_replaced_examples(replaced[name], agent.agent_index, agent.scale)
        self._create_job("supervised", examples, job_name)

    def create_dpo_fine_tune_job(
        self,
        pairs_per_agent: Mapping[str, Sequence[PreferencePair] | NestedArrayDict],
        positive_examples_per_agent: Mapping[str, NestedArrayDict] | None = None,
        negative_examples_per_agent: Mapping[str, NestedArrayDict] | None = None,
        *,
        job_name: str | None = None,
    ) -> None:
        """Create the job that trains on agents' preferences, or adopt it if it already exists.

        With fewer than 10 pairs in total, or a frozen group, no job is created.

        Parameters
        ----------
        pairs_per_agent
            Agent → pairs of replies to one prompt; or timesteps, batch [n], at each of which it
            gave a better and a worse answer.
        positive_examples_per_agent, negative_examples_per_agent
            With timesteps: agent → the timesteps, batch [n], of the better and the worse answers.
            Prompts and answers are read from these.
        job_name
            See :meth:`create_supervised_fine_tune_job`.
        """
        self._check_names(set(pairs_per_agent))
        examples: list[Example] = []
        for name, agent in self.agents.items():
            pairs = pairs_per_agent.get(name, ())
            if isinstance(pairs, NestedArrayDict):
                both = (positive_examples_per_agent or {}, negative_examples_per_agent or {})
                if name not in both[0] or name not in both[1]:
                    raise DataError(
                        f"group {self.name!r}: got timesteps of agent {name!r} without positive and"
                        " negative examples, expected both."
                    )
                pairs = timestep_pairs(both[0][name], both[1][name], agent.agent_index)
            if name in self.learning_agents:
                examples += preference_examples(pairs)
        self._create_job("dpo", examples, job_name)

    def get_fine_tune_job_status(self) -> GroupStatus:
        """Return the job's status: as last seen if it is final, else as the service says now.

        ``"insufficient_data"`` and ``"frozen"`` where there is no job.
        """
        job = self._look()
        if job is None:
            return self._state.no_job_reason or "frozen"
        return job.status

    def get_fine_tune_job_error_repr(self) -> str:
        """Return the service's reason why the job failed; empty if it didn't."""
        job = self._look()
        if job is None or not job.is_lost:
            return ""
        return f"job {job.id}: {job.error or job.status}"

    async def await_job(
        self, on_look: Callable[[FineTuneJob], None] | None = None
    ) -> FineTuneJob | None:
        """Wait until the job has ended in any way; None without a job.

        ``on_look`` receives the service's status of it at each poll.
        """
        job_id = self._state.fine_tune_job_id
        if job_id is None:
            return None
        if self._job is None or not self._job.is_final:
            self._job = self._known_job()
        if self._job is None:
            seconds = self._settings
            pauses = seconds.poll_seconds, seconds.poll_seconds_max, seconds.job_stall_seconds
            self._job = (await self._client.wait([job_id], *pauses, on_look=on_look))[job_id]
        if self.allowance is not None and self._state.fine_tune_intent is not None:
            intent = self._state.fine_tune_intent
            self.allowance.settle(intent, self._job, tuned_from=self.base_model_name)
        return self._job

    async def activate(self, model: str) -> str | None:
        """Deploy a trained model, wait until it is callable, and return its deployment's name.

        No effect for services without deployments. An existing deployment is reused.
        """
        if self.parameters.use_dummy_api or not self._client.backend.deploys:
            return None
        pauses = self._settings.poll_seconds, self._settings.poll_seconds_max
        called = await self._client.activate(model, *pauses)
        return None if called == model else called

    async def activate_next_model(self) -> None:
        """Deploy the job's model, so that the switch to it is quick."""
        if self._job is not None and self._job.fine_tuned_model is not None:
            await self.activate(self._job.fine_tuned_model)

    def make_callable(self) -> None:
        """Deploy the current model, if a job trained it, since deployments may disappear."""
        if self.current_model_name != self.base_model_name:
            called = _run(self.activate(self.current_model_name))
            self._state = replace(self._state, called_as=called)

    def switch_to_next_model(self) -> None:
        """Switch to the model of the job; keep the old one without a job.

        If it needs a deployment, creates it and waits for it: the group is unchanged if that fails.
        """
        job = self._look()
        state = replace(
            self._state, fine_tune_job_id=None, fine_tune_intent=None, no_job_reason=None
        )
        if job is not None:
            if job.fine_tuned_model is None:
                reason = f" ({job.error})" if job.error else ""
                raise FineTuneError(
                    f"group {self.name!r}: job {job.id} is {job.status}{reason}, expected"
                    " succeeded. Wait for it with await_job()."
                )
            model = job.fine_tuned_model
            state = replace(
                state,
                current_model_name=model,
                model_names=(*state.model_names, model),
                called_as=_run(self.activate(model)),
            )
        self.state = state

    def record_usage(self, usage: UsageMeter) -> None:
        """Record the billed tokens of a successful job; call it before the switch."""
        job, intent = self._look(), self._state.fine_tune_intent
        if job is None or intent is None or not job.trained_tokens:
            return
        prices = PriceTable.load(self._settings.prices)
        price = prices.find(
            intent.model, embedded=self._client.backend.is_free, tuned_from=self.base_model_name
        )
        usage.record_training(self.name, intent.model, job.trained_tokens, price)

    def _create_job(
        self, method: FineTuneMethod, examples: Sequence[Example], job_name: str | None
    ) -> None:
        if self._state.fine_tune_job_id is not None:
            raise StateError(
                f"group {self.name!r}: the job {self._state.fine_tune_job_id} already exists."
                " Switch to its model before creating the next one."
            )
        if self.parameters.freeze_agent or not self.learning_agents:
            self.state = replace(self._state, no_job_reason="frozen")
            return
        if len(examples) < MIN_EXAMPLES:
            _LOGGER.warning(
                "group %s: got %d examples, expected at least %d: no fine-tune job, %s stays",
                self.name,
                len(examples),
                MIN_EXAMPLES,
                self.current_model_name,
            )
            self.state = replace(self._state, no_job_reason="insufficient_data")
            return
        content = to_lines(examples)
        intent = self._intent(method, content, job_name or self.name)
        job = (
            _dummy_job(intent)
            if self.parameters.use_dummy_api
            else self._ensure_job(intent, content)
        )
        self.state = replace(
            self._state, fine_tune_job_id=job.id, fine_tune_intent=intent, no_job_reason=None
        )
        self._job = job

    def _ensure_job(self, intent: FineTuneIntent, content: bytes) -> FineTuneJob:
        """Return the job, billed if there is an account; one that was lost unseen is billed too."""
        self._client.backend.check()
        allowance = self.allowance
        if allowance is None:
            return _run(self._client.ensure_job(intent, content))
        base, free = self.base_model_name, self._client.backend.is_free
        was_held = allowance.reserve(intent, len(content), embedded=free, tuned_from=base)
        on_lost = partial(allowance.replace, intent, tuned_from=base) if was_held else None
        try:
            return _run(self._client.ensure_job(intent, content, on_lost))
        except FineTuneRefusedError:
            allowance.release(intent)
            raise

    def _intent(self, method: FineTuneMethod, content: bytes, job_name: str) -> FineTuneIntent:
        scratch = self.parameters.fine_tune_from_scratch
        hyper_parameters = self.parameters.fine_tuning.model_dump(
            exclude_none=True, exclude={"seed"}
        )
        if method == "supervised":
            hyper_parameters.pop("beta", None)
        suffix = "".join(c if c.isalnum() and c.isascii() else "-" for c in job_name)
        return FineTuneIntent(
            model=self.parameters.model_name if scratch else self.current_model_name,
            method=method,
            file_sha256=sha256_of(content),
            hyper_parameters=hyper_parameters,
            suffix=suffix[:_SUFFIX_LETTERS].strip("-") or None,
            seed=self.training_seed(method),
        )

    def training_seed(self, method: str) -> int:
        """Return the seed of the group's training: its parameters', else a derived one."""
        seed = self.parameters.fine_tuning.seed
        return service_seed(self._seed, "fine_tune", 0, method, self.name) if seed is None else seed

    def _look(self) -> FineTuneJob | None:
        """Return the job; query the service unless the job has ended."""
        job_id = self._state.fine_tune_job_id
        if job_id is None:
            return None
        if self._job is None or not self._job.is_final:
            self._job = self._known_job() or _run(self._client.status(job_id))
        return self._job

    def _known_job(self) -> FineTuneJob | None:
        """Return a job without a query to a service: a dummy, or a session's saved model."""
        job_id, intent = self._state.fine_tune_job_id, self._state.fine_tune_intent
        learned = self._state.token_training
        if learned is not None and job_id is not None and learned.session == job_id:
            return FineTuneJob(job_id, "succeeded", learned.model)
        return _dummy_job(intent) if self.parameters.use_dummy_api and intent else None

    @cached_property
    def _client(self) -> FineTuneClient:
        return FineTuneClient(
            self.endpoint,
            Path(self._settings.home) / "fine_tune_jobs",
            settle_seconds=self._settings.job_listing_seconds,
            backend=build_tuning_backend(
                self.endpoint, self.parameters.fine_tuning_service, self._settings.base_dir
            ),
        )

    def _check_names(self, names: set[str]) -> None:
        for name in names - set(self.agents):
            raise UnknownNameError(
                f"group {self.name!r}: unknown agent {name!r}.{nearest(name, self.agents)}"
            )


def _check_agreement(group: str, agents: Sequence[PureTextWholeAgent]) -> None:
    if not agents:
        raise ParameterError(f"group {group!r}: got no agents, expected at least one.")
    first, *others = agents
    for parameter in _SHARED_PARAMETERS:
        expected = getattr(first.parameters, parameter)
        for other in others:
            got = getattr(other.parameters, parameter)
            if got != expected:
                raise ParameterError(
                    f"agents.{other.agent_name}.{parameter}: got {got!r}, but"
                    f" agents.{first.agent_name} of the same shared_model_group {group!r} has"
                    f" {expected!r}. Give them the same value, or separate groups."
                )


def _dummy_job(intent: FineTuneIntent) -> FineTuneJob:
    """Return a dummy job that has succeeded."""
    base = intent.model.split(":")[1] if intent.model.startswith("ft:") else intent.model
    identity = intent.digest[:12]
    model = f"ft:{base}:{intent.suffix or 'ratchet'}:{identity}"
    return FineTuneJob(f"dummy-{identity}", "succeeded", model)


def _run(coroutine: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine to its end, in a separate thread if a loop runs in this one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()
