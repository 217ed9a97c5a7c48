"""Models that ``mlflow.pyfunc.load_model`` returns for models logged by a run.

MLflow finds this module by its name in the model's description and calls :func:`_load_pyfunc`.
Everything is built from the model's parameters, safetensors and JSON, without pickle. A user's
modules and data, if the parameters name any, are looked up in the folder of the experiment's file,
or in the current folder if that does not exist.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import yaml

from ratchet.errors import DataError, StateError, UnknownNameError, nearest
from ratchet.language_models.auxiliary_calls import ModelCalls
from ratchet.language_models.dummy import dummy_completion
from ratchet.language_models.engines.rollouts import SampleRequest
from ratchet.language_models.ledger import Ledger
from ratchet.language_models.pricing import Budget
from ratchet.language_models.types import ChatMessage, ChatRequest, Completion
from ratchet.language_models.usage import UsageMeter
from ratchet.parameters.compatibility.converters import upgraded
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.settings import ExperimentSettings
from ratchet.scenarios.language_task.task import prompt_format
from ratchet.scenarios.registry import build_scenario_instance
from ratchet.seeding import derive_seed, service_seed
from ratchet.tracking.trainer_files import STATE_FOLDER
from trainers.registry import trainer_class
from trainers.staged import StagedTrainer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainers.base import Trainer
    from trainers.language.trainer import LanguageTrainer
    from trainers.results import Table
    from trainers.text.state import State as TextState


class NetworkAgentsModel:
    """Networks that play datapoints of the experiment's datasets as the run's tests do."""

    def __init__(self, trainer: StagedTrainer) -> None:
        self._trainer = trainer
        self._tables: dict[str, Table] = {}

    def predict(
        self, model_input: pd.DataFrame, params: Mapping[str, Any] | None = None
    ) -> pd.DataFrame:
        """Play datapoints to the end; return a row for each, as in the run's tables.

        The complete dataset is played once, as in the run's tests.

        Parameters
        ----------
        model_input
            With the column ``datapoint_id``: positions in the dataset, from 0.
        params
            ``dataset``: ``"test"`` if not given, ``"train"``, or the name of an extra test set.
        """
        dataset = str((params or {}).get("dataset", "test"))
        if dataset not in self._tables:  # loaded agents don't change
            self._tables[dataset] = self._trainer.evaluate(dataset).table
        table = pd.DataFrame(self._tables[dataset]).set_index("datapoint_id", drop=False)
        ids = [int(index) for index in model_input["datapoint_id"]]
        for index in ids:
            if index not in table.index:
                raise DataError(
                    f"datapoint_id: got {index}, expected one of the {len(table)} positions in the"
                    f" dataset {dataset!r} that tests play, from 0."
                )
        return table.loc[ids].reset_index(drop=True)


class LanguageModelPyfunc:
    """A language model that completes prompts."""

    def __init__(self, trainer: LanguageTrainer) -> None:
        self._trainer = trainer

    def predict(
        self, model_input: pd.DataFrame, params: Mapping[str, Any] | None = None
    ) -> pd.DataFrame:
        """Complete prompts in the format of tasks; return the texts in the column ``text``.

        Parameters
        ----------
        model_input
            With the column ``prompt``: the text of a task.
        params
            ``temperature``, by default that of tests, and ``seed``.
        """
        options, trainer = params or {}, self._trainer
        learner, instance = trainer.learner, trainer.scenario_instance
        rules = instance.test_environment.rules
        writer = prompt_format(learner.tokenizer, chat=rules.chat)
        agent = instance.agents[next(iter(trainer.model_names))]
        tests = trainer.hyper_params.language.test_temperature
        requests = [
            SampleRequest(
                prompt=tuple(writer.prompt(rules.opening([ChatMessage("user", str(prompt))]))),
                max_tokens=agent.parameters.max_tokens,
                seed=derive_seed(int(options.get("seed", 0)), "test", row, "predict"),
                temperature=float(options.get("temperature", tests)),
                top_p=agent.parameters.top_p,
            )
            for row, prompt in enumerate(model_input["prompt"])
        ]
        written = learner.engine.generate(requests) if requests else []
        texts = [learner.tokenizer.decode(completion.tokens) for completion in written]
        return pd.DataFrame({"text": texts})


class ChatModelsPyfunc:
    """Chat models of a text scenario's agents; calls are sent to their services and billed."""

    def __init__(
        self, hyper_params: HyperParameters, settings: ExperimentSettings, state: TextState
    ) -> None:
        self._hyper_params, self._settings, self._state = hyper_params, settings, state

    def predict(
        self, model_input: pd.DataFrame, params: Mapping[str, Any] | None = None
    ) -> pd.DataFrame:
        """Query an agent's model; return its replies in the column ``text``.

        Parameters
        ----------
        model_input
            With the column ``prompt``: the user's message.
        params
            ``agent``, by default the protocol's first, and ``seed``.
        """
        options, agents = params or {}, self._state.agents
        name = str(options.get("agent") or next(iter(agents)))
        if name not in agents:
            raise UnknownNameError(f"agent: got {name!r}.{nearest(name, agents)}")
        agent_parameters = self._hyper_params.agents[name]
        group = self._state.shared_model_groups[agents[name].shared_model_group]
        requests = {
            str(row): ChatRequest(
                group.called_as or group.current_model_name,
                (ChatMessage("user", str(prompt)),),
                temperature=agent_parameters.temperature,
                top_p=agent_parameters.top_p,
                max_tokens=agent_parameters.max_tokens,
                seed=service_seed(int(options.get("seed", 0)), "predict", row),
                reasoning_effort=agent_parameters.reasoning_effort,
                chat_template_kwargs=agent_parameters.chat_template_kwargs,
                extra_body=agent_parameters.extra_body,
                repetition_penalty=agent_parameters.repetition_penalty,
            )
            for row, prompt in enumerate(model_input["prompt"])
        }
        usage = UsageMeter("predict", Ledger(Budget(self._settings.budget)))
        with ModelCalls(self._settings, usage) as calls:
            replies = calls.ask(name, agent_parameters, requests, _say_something)
        return pd.DataFrame({"text": [replies[row].text for row in requests]})


def _say_something(request: ChatRequest) -> Completion:
    return dummy_completion(request, {"": ""}, may_decide=False, must_decide=False)


def _load_pyfunc(path: str) -> NetworkAgentsModel | LanguageModelPyfunc | ChatModelsPyfunc:
    """Build the agents of a model's folder, and load their weights."""
    folder = Path(path)
    state = folder / STATE_FOLDER
    config = yaml.safe_load((folder / "config.yaml").read_text())
    base_dir = _experiment_folder(folder)
    hyper_params = HyperParameters.from_dict(
        _without_warm_up(upgraded(config, f"model {folder}")), base_dir
    )
    settings = ExperimentSettings(progress="none", base_dir=base_dir)
    trainer_cls = trainer_class(hyper_params, base_dir)
    if trainer_cls.traits.plays_text:
        from trainers.text.state import State

        return ChatModelsPyfunc(hyper_params, settings, State.load(state))
    instance = build_scenario_instance(
        hyper_params,
        settings,
        trainer_type=trainer_cls.trainer_type,
        base_dir=None if base_dir is None else Path(base_dir),
    )
    trainer = trainer_cls(hyper_params, instance, settings)
    if trainer_cls.traits.learns_tokens:
        return _writing_model(trainer, state)
    if not isinstance(trainer, StagedTrainer):
        raise StateError(
            f"model {folder}: its trainer {trainer_cls.__name__} runs as a single stage, expected"
            " one whose states can be set."
        )
    if hyper_params.phases:  # the last may have a different loss from the experiment's
        trainer.take_over(state, {}, {})
    else:
        trainer.state = _without_replay(state) or trainer_cls.State.load(state)
    return NetworkAgentsModel(trainer)


def _without_warm_up(config: dict[str, Any]) -> dict[str, Any]:
    """Disable the warm-up of language models, whose weights are loaded instead."""
    for section in config.get("agents", {}).values():
        if isinstance(section, dict) and "warm_up" in section:
            section["warm_up"]["num_steps"] = 0
    return config


def _experiment_folder(folder: Path) -> str | None:
    """Return the folder of the experiment's file, if it exists."""
    description = yaml.safe_load((folder / "MLmodel").read_text())
    base_dir = description["flavors"]["ratchet"].get("base_dir")
    return base_dir if base_dir and Path(base_dir).is_dir() else None


def _writing_model(trainer: Trainer, folder: Path) -> LanguageModelPyfunc:
    """Load a language model's weights, without its initial ones."""
    from trainers.language.state import LanguageState
    from trainers.language.trainer import LanguageTrainer

    assert isinstance(trainer, LanguageTrainer)  # as learns_tokens implies
    trainer.only_plays = True
    trainer.state = replace(LanguageState.load(folder), initial="", pending=None)
    return LanguageModelPyfunc(trainer)


def _without_replay(folder: Path) -> object:
    """Return a TorchRL state without its frames, which only learning reads.

    None for the states of other trainers.
    """
    values = json.loads((folder / "state.json").read_text())
    if "buffers" not in values:
        return None
    from safetensors.torch import load_file

    from trainers.torchrl.replay import ReplayContent
    from trainers.torchrl.state import TENSORS_FILE, TorchRlState

    return TorchRlState(
        values["iteration"],
        values["stage"],
        values["values"],
        load_file(folder / TENSORS_FILE),
        {name: ReplayContent() for name in values["buffers"]},
    )
