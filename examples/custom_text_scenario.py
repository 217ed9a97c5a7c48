"""Custom scenario for chat models: its data and system prompts.

Run it:    python examples/custom_text_scenario.py
Train it:  ratchet run examples/custom_text_scenario.yaml

The verifier must decide whether a claimed sum is right. Protocols, trainers, jobs and reports are
independent of the scenario. Completions are random here, since agents have ``use_dummy_api``.
"""

from __future__ import annotations

import numpy as np
from pydantic import PositiveInt

from ratchet import ExperimentSettings, HyperParameters
from ratchet.parameters import SubParameters, register_parameters
from ratchet.protocols import ProtocolHandler
from ratchet.rollouts import NestedArrayDict
from ratchet.rollouts.dataset import NestedArrayDictDataset
from ratchet.scenarios import build_scenario_instance, register_scenario
from ratchet.scenarios.pure_text.base import TextScenario
from ratchet.scenarios.pure_text.views import AgentView
from ratchet.seeding import numpy_generator
from trainers.registry import build_trainer


@register_parameters("sums", scenarios=("sums",))
class SumsParameters(SubParameters):
    """The section ``sums`` of an experiment file.

    - ``largest``: largest term of a sum.
    - ``num_sums``: number of sums, training and test.
    """

    largest: PositiveInt = 99
    num_sums: PositiveInt = 100


class SumsPrompts:
    """System prompts; ``view`` contains exactly the information available to an agent."""

    def render(self, view: AgentView) -> str:
        """Return an agent's system prompt."""
        claim = f"Somebody claims that {view.question} is {view.solution}."
        if view.stance is not None:
            claim += f" Argue that this is {('wrong', 'right')[view.stance]}."
        lines = [f"{header} <your text>" for header in view.headers.values()]
        if lines:
            claim += "\nTo write, reply with a line that starts like this:\n" + "\n".join(lines)
        if view.may_decide:
            claim += "\nTo decide, reply only `Decision: accept` or `Decision: reject`."
        return claim


@register_scenario("sums")
class Sums(TextScenario):
    """Scenario: decide whether a claimed sum is right."""

    label_texts = ("the sum is wrong", "the sum is right")

    def build_datasets(self, hyper_params: HyperParameters) -> dict[str, NestedArrayDictDataset]:
        """Build ``train`` and ``test``; their ids do not overlap."""
        section: SumsParameters = hyper_params.sums
        num_test = round(section.num_sums * hyper_params.test_size)
        ids = np.arange(section.num_sums)
        sides = {"train": ids[num_test:], "test": ids[:num_test]}
        return {side: _make(hyper_params, its, side) for side, its in sides.items()}

    def build_system_prompts(
        self, hyper_params: HyperParameters, protocol_handler: ProtocolHandler
    ) -> SumsPrompts:
        """Return the renderer of system prompts."""
        return SumsPrompts()


def _make(hyper_params: HyperParameters, ids: np.ndarray, side: str) -> NestedArrayDictDataset:
    """Sample ``question``, ``solution``, ``y`` (1 right, 0 wrong) and ``datapoint_id`` [N]."""
    generator = numpy_generator(hyper_params.seed, "sums", purpose=side)
    terms = generator.integers(1, hyper_params.sums.largest + 1, size=(len(ids), 2))
    y = np.arange(len(ids)) % 2
    claimed = terms.sum(axis=1) + (1 - y) * generator.integers(1, 10, size=len(ids))
    fields = {
        "question": [f"{a} + {b}" for a, b in terms],
        "solution": [str(value) for value in claimed],
        "y": y,
        "datapoint_id": ids,
    }
    return NestedArrayDictDataset(NestedArrayDict(fields, [len(ids)]))


def main() -> None:
    """Train for one iteration and print the verifier's accuracy."""
    hyper_params = HyperParameters(
        scenario="sums",
        trainer="pure_text_ei",
        dataset="generated",
        nip_protocol={"max_message_rounds": 3},
        rl={"num_iterations": 1, "rollouts_per_iteration": 20},
        agents={"_default": {"use_dummy_api": True}},
    )
    settings = ExperimentSettings()
    scenario_instance = build_scenario_instance(hyper_params, settings)
    trainer = build_trainer(hyper_params, scenario_instance, settings)
    trainer.train()
    for record in trainer.history:
        for name, value in record.values.items():
            if name in ("accuracy", "test_accuracy"):
                print(f"{record.stage} {name}: {value:.0%}")


if __name__ == "__main__":
    main()
