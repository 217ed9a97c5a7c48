"""A tiny text experiment: eight datapoints, agents that answer at random or by a rule."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from ratchet.parameters import ExperimentSettings, HyperParameters, register_agent_parameters
from ratchet.parameters.chat_agents import TextAgentParameters
from ratchet.rollouts.dataset import NestedArrayDictDataset
from ratchet.rollouts.nested_array_dict import NestedArrayDict
from ratchet.scenarios.pure_text.base import TextScenario
from ratchet.scenarios.pure_text.views import AgentView
from ratchet.scenarios.registry import build_scenario_instance, register_scenario
from trainers.registry import trainer_class

PARAMETERS: dict[str, Any] = {
    "scenario": "tiny_text",
    "trainer": "pure_text_ei",
    "dataset": "tiny",
    "nip_protocol": {"max_message_rounds": 3},
    "rl": {"num_iterations": 3, "rollouts_per_iteration": 24},
    "text_rl": {"save_transcripts": False},
    "agents": {"_default": {"use_dummy_api": True, "num_invalid_generation_retries": 2}},
}


class _Prompts:
    def render(self, view: AgentView, /) -> str:
        return f"Is {view.solution} right for {view.question}?"


@register_scenario("tiny_text")
class TinyTextScenario(TextScenario):
    """Datapoints without meaning."""

    def build_datasets(self, hyper_params: HyperParameters) -> Mapping[str, NestedArrayDictDataset]:
        return {"train": dataset(8), "test": dataset(4)}

    def build_system_prompts(self, hyper_params: object, protocol_handler: object) -> _Prompts:
        return _Prompts()


register_agent_parameters("tiny_text")(TextAgentParameters)


def dataset(size: int) -> NestedArrayDictDataset:
    """Make questions; every second solution is right."""
    return NestedArrayDictDataset(
        NestedArrayDict(
            {
                "question": [f"question {i}" for i in range(size)],
                "solution": [f"solution {i}" for i in range(size)],
                "y": np.arange(size) % 2,
                "datapoint_id": np.arange(size),
                "level": np.full(size, -1),
                "source": ["tiny"] * size,
            },
            size,
        )
    )


def parameters(**changes: object) -> HyperParameters:
    """Make the parameters, with changes by dotted path (dots written as two underscores)."""
    plain = {path.replace("__", "."): value for path, value in changes.items()}
    return HyperParameters(**PARAMETERS).replace(plain)


def trainer(hyper_params: HyperParameters, *, found: type | None = None, **settings: Any) -> Any:
    """Build a trainer with fresh agents."""
    made = ExperimentSettings(poll_seconds=0.01, **settings)
    instance = build_scenario_instance(hyper_params, made, trainer_type="pure_text")
    return (found or trainer_class(hyper_params))(hyper_params, instance, made)


def main(name: str, home: str, pause: str) -> None:
    """Train under a run's id, in a separate process that can be killed."""
    import time

    from ratchet.scenarios.pure_text.agents import whole_agent

    answer = whole_agent.dummy_completion

    def slowly(*args: Any, **kwargs: Any) -> object:
        time.sleep(float(pause))
        return answer(*args, **kwargs)

    whole_agent.dummy_completion = slowly
    trainer(parameters(trainer=name), home=home, run_id="r").train()


if __name__ == "__main__":
    main(*sys.argv[1:])
