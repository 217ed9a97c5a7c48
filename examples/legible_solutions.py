"""Custom text scenario with labels made by play: whether a solution by the prover is right.

Run it:    python examples/legible_solutions.py
Train it:  ratchet run examples/legible_solutions.yaml

As in prover-verifier games (Kirchner et al. 2024, arXiv:2407.13692), the prover's stance is sampled
for each episode. A helpful prover (1) is rewarded if its solution is right and accepted, a sneaky
one (0) if it is wrong and accepted. Here a scripted verifier only checks the last step.
"""

from __future__ import annotations

import asyncio
import re

import numpy as np
from torch import Tensor

from ratchet import ExperimentSettings, HyperParameters
from ratchet.protocols import ProtocolHandler, register_protocol_handler
from ratchet.protocols.adp import AdpProtocolHandler
from ratchet.rollouts import NestedArrayDict
from ratchet.rollouts.concatenation import concatenate_nested_array_dicts
from ratchet.rollouts.dataset import NestedArrayDictDataset
from ratchet.scenarios import build_scenario_instance, register_scenario
from ratchet.scenarios.pure_text.agents.whole_agent import AgentOutput, CallContext
from ratchet.scenarios.pure_text.base import TextScenario
from ratchet.scenarios.pure_text.episode import Position
from ratchet.scenarios.pure_text.rollout import sample_rollout
from ratchet.scenarios.pure_text.views import AgentView
from ratchet.seeding import numpy_generator


@register_protocol_handler("solution_and_verdict")
class SolutionAndVerdict(AdpProtocolHandler):
    """A prover writes a solution, and the verifier accepts or rejects it."""

    def prover_is_paid(self, stance: Tensor, decision: Tensor, y: Tensor) -> Tensor:
        """Return where a solution that suits the role is accepted, bool[*B]."""
        return (decision == 1) & (y == stance)


class SolutionPrompts:
    """System prompts of prover and verifier."""

    def render(self, view: AgentView) -> str:
        """Return an agent's system prompt."""
        if view.stance is None:
            return f"Is {view.question} solved? Reply `Decision: accept` or `Decision: reject`."
        kind = ("wrong but convincing", "right and easy to check")[view.stance]
        return f"Solve {view.question} in a {kind} way: `Argument: <steps and answer>`."


@register_scenario("legible_solutions")
class LegibleSolutions(TextScenario):
    """Scenario: decide whether a solution written by the prover is right."""

    label_texts = ("the solution is wrong", "the solution is right")

    def label(self, position: Position) -> int:
        """Return whether the last number of the prover's message is the sum."""
        numbers = re.findall(r"\d+", " ".join(message.text for message in position.messages))
        return int(numbers[-1:] == [str(sum(map(int, position.question.split(" + "))))])

    def build_datasets(self, hyper_params: HyperParameters) -> dict[str, NestedArrayDictDataset]:
        """Build ``train`` and ``test``, without solutions, which the prover writes."""
        generator = numpy_generator(hyper_params.seed, "sums", purpose="data")
        datasets = {}
        for side, ids in (("train", np.arange(80)), ("test", np.arange(80, 100))):
            terms = generator.integers(10, 100, size=(len(ids), 3)).astype(str)
            question = [" + ".join(row) for row in terms]
            data = {"question": question, "solution": [""] * len(ids), "datapoint_id": ids}
            datasets[side] = NestedArrayDictDataset(NestedArrayDict(data, len(ids)))
        return datasets

    def build_system_prompts(
        self, hyper_params: HyperParameters, protocol_handler: ProtocolHandler
    ) -> SolutionPrompts:
        """Return the renderer of system prompts."""
        return SolutionPrompts()


class ScriptedAgent:
    """Prover that errs in one of two steps if it is sneaky; verifier that checks the last step."""

    async def act(self, view: AgentView, context: CallContext) -> AgentOutput:
        """Return a solution or a decision."""
        if view.stance is None:
            a, b, total = map(int, re.findall(r"\d+", view.messages[0].text)[-3:])
            return AgentOutput({}, "", decision=int(a + b == total))
        a, b, c = map(int, view.question.split(" + "))
        errors = ((view.seed % 2, 1 - view.seed % 2), (0, 0))[view.stance]
        first = a + b + errors[0]
        text = f"{a} + {b} = {first}; {first} + {c} = {first + c + errors[1]}"
        return AgentOutput({"main": text}, f"Argument: {text}")


def main() -> None:
    """Play scripted episodes; print labels, decisions and the prover's rewards by role."""
    hyper_params = HyperParameters(
        scenario="legible_solutions",
        trainer="pure_text_ei",
        dataset="generated",
        interaction_protocol="solution_and_verdict",
        protocol_common={"randomize_prover_stance": True},
    )
    environment = build_scenario_instance(hyper_params, ExperimentSettings()).train_environment
    agents = dict.fromkeys(("prover", "verifier"), ScriptedAgent())
    context = CallContext(journal=None, usage=None, call_prefix="", seed=0)
    plays = [sample_rollout(environment, agents, i, i, i, context) for i in range(80)]
    rollouts = concatenate_nested_array_dicts([asyncio.run(play) for play in plays])
    for role, stance in (("sneaky", 0), ("helpful", 1)):
        rows = rollouts[rollouts["prover_stance"] == stance]
        accepted = (rows["agents", "decision"][:, 1, 1] == 1).mean()
        reward = rows["agents", "reward"][:, 1, 0].mean()
        print(f"{role}: right {rows['y'].mean():.0%}, accepted {accepted:.0%}, reward {reward:.2f}")


if __name__ == "__main__":
    main()
