"""NashConv of language models: their policies are those by which they reply."""

from __future__ import annotations

import pytest
import torch

from ratchet import HyperParameters
from ratchet.errors import ParameterError
from ratchet.parameters.settings import ExperimentSettings
from ratchet.scenarios import build_scenario_instance
from trainers.compatibility import check_combination
from trainers.registry import build_trainer

pyspiel = pytest.importorskip("pyspiel", reason="needs OpenSpiel")
from ratchet.games.information_states import information_states  # noqa: E402
from trainers.callbacks.game_policies import language_policy  # noqa: E402

KUHN = {
    "scenario": "language_task",
    "trainer": "grpo",
    "dataset": "open_spiel/kuhn_poker",
    "language_task": {"num_train": 40, "num_test": 4},
    "agents": {
        "_default": {
            "max_tokens": 3,
            "temperature": 0.7,
            "small_model": {"layers": 1, "d_model": 16, "heads": 2, "context_length": 32},
            "warm_up": {"num_steps": 20},
        }
    },
    "language": {"tasks_per_step": 8, "group_size": 1, "optimizer": {"lr": 0.01}},
    "grpo": {"baseline": "agent_average", "advantage_scale": "none"},
    "rl": {"num_iterations": 4},
    "callbacks": [{"name": "nash_conv", "measure_every": 1}],
}
REMOTE = {
    "trainer": "remote_grpo",
    "language": {**KUHN["language"], "train_service": {"backend": "ratchet"}},
    "agents": {"_default": {"max_tokens": 3}},
}
GAME = pyspiel.load_game("kuhn_poker")
STATES = information_states(GAME)


def make(**changes):
    hyper_params = HyperParameters.from_dict({**KUHN, **changes})
    instance = build_scenario_instance(hyper_params, ExperimentSettings())
    trainer = build_trainer(hyper_params, instance, ExperimentSettings())
    trainer.initial_state()
    return trainer


def chances(trainer, agent, tokens):
    """Probabilities of the next token at the temperature of training."""
    model = trainer.learners[trainer.model_names[agent]].model
    ids = torch.tensor([[*tokens, token] for token in range(model.vocabulary_size)])
    mask = torch.zeros_like(ids)
    mask[:, -1] = 1
    with torch.no_grad():
        return model.score(ids, torch.ones_like(ids), mask, temperature=0.7).log_probs[:, -1].exp()


def test_a_function_is_certain(tmp_path):
    plugin = tmp_path / "last.py"
    plugin.write_text("def choose(view):\n    return max(view.legal)\n")
    trainer = make(agents={**KUHN["agents"], "player_1": {"model": f"{plugin}:choose"}})
    policy = language_policy(trainer, GAME, STATES)
    last = STATES.legal * torch.arange(1, 3)
    expected = torch.nn.functional.one_hot(last.argmax(-1), 2).double()
    assert torch.equal(policy[STATES.player == 1], expected[STATES.player == 1])
    assert not torch.equal(policy[STATES.player == 0], expected[STATES.player == 0])


def test_probabilities_are_those_of_replies_relative_to_legal_ones():
    trainer = make()
    policy = language_policy(trainer, GAME, STATES)
    assert torch.allclose(policy.sum(-1), torch.ones(12, dtype=torch.float64))
    for name, agent in (("1", "player_0"), ("1b", "player_1"), ("0pb", "player_0")):
        tokenizer = trainer.learners[agent].tokenizer
        seen = tokenizer.encode(name)
        if name == "0pb":  # after its own reply, within three tokens
            seen = [*tokenizer.encode("0"), *tokenizer.encode("Pas"), *seen]
        together = []
        for text in ("Pas", "Bet"):
            product, tokens = 1.0, list(seen)
            for token in tokenizer.encode(text):
                product *= float(chances(trainer, agent, tokens)[token])
                tokens.append(token)
            together.append(product)
        expected = torch.tensor(together, dtype=torch.float64)
        row = policy[STATES.names.index(name)]
        assert torch.allclose(row, expected / expected.sum(), rtol=1e-4)


def test_an_agent_that_acts_at_random_has_equal_probabilities():
    trainer = make(agents={**KUHN["agents"], "player_1": {"model": "random"}})
    policy = language_policy(trainer, GAME, STATES)
    assert (policy[STATES.player == 1] == 0.5).all()
    assert (policy[STATES.player == 0] != 0.5).all()


def test_the_average_continues_from_a_saved_state(tmp_path):
    whole = make()
    whole.save_state(tmp_path / "initial", "initial")
    whole.run_iterations(0, 2)
    whole.save_state(tmp_path / "half", "half")
    metrics = whole.run_iterations(2, 4)
    resumed = make()
    resumed.load_state(tmp_path / "half", "", lambda key: tmp_path / key)
    assert [m["nash_conv.average"] for m in resumed.run_iterations(2, 4)] == [
        m["nash_conv.average"] for m in metrics
    ]
    assert 0 < metrics[-1]["nash_conv.last"] < 1.5


@pytest.mark.parametrize("changes", [REMOTE, {"dataset": "reverse"}])
def test_what_has_no_readable_policy_is_refused(changes):
    with pytest.raises(ParameterError, match="nash_conv"):
        check_combination(HyperParameters.from_dict({**KUHN, **changes}))
