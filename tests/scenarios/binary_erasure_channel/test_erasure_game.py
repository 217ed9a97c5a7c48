"""The game matches its description: deals, channel, observations and analytic solution."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.errors import ParameterError
from ratchet.protocols.registry import build_protocol_handler
from ratchet.scenarios.binary_erasure_channel.parameters import BinaryErasureChannelParameters
from ratchet.scenarios.binary_erasure_channel.scenario import (
    ERASED,
    ErasureEnvironment,
    build_erasure_datasets,
)
from tests.scenarios.binary_erasure_channel import analytic_solution as solution

NOTHING = 2


def test_deals_come_as_often_as_their_chance_says(erasure_parameters):
    datasets = build_erasure_datasets(
        erasure_parameters(
            binary_erasure_channel__num_datapoints=500,
            binary_erasure_channel__observation_erasure_probability=0.6,
            binary_erasure_channel__lie_erasure_probability=0.25,
        )
    )
    assert {name: len(data) for name, data in datasets.items()} == {"train": 400, "test": 100}
    for size, data in ((400, datasets["train"]), (100, datasets["test"])):
        assert torch.equal(data["y"], data["bit"])
        unseen = data["observation"] == ERASED
        assert torch.equal(data["observation"][~unseen], data["bit"][~unseen])
        for bit, lie_erased in itertools.product((0, 1), (False, True)):
            rows = (data["bit"] == bit) & (data["lie_erased"] == lie_erased)
            share = 0.5 * (0.25 if lie_erased else 0.75)
            assert rows.sum() == pytest.approx(share * size, abs=1)
            assert (rows & unseen).sum() == pytest.approx(share * 0.6 * size, abs=1)


def test_the_same_seed_deals_the_same_and_another_in_another_order(erasure_parameters):
    one, again, other = (build_erasure_datasets(erasure_parameters(seed=s)) for s in (1, 1, 2))
    assert one == again
    assert one["train"] != other["train"]
    own = erasure_parameters(seed=2, binary_erasure_channel__dataset_seed=1)
    assert build_erasure_datasets(own) == one


def test_unknown_datasets_and_empty_sides_are_refused(erasure_parameters):
    with pytest.raises(ParameterError, match="got 'er1000', expected 'generated'"):
        build_erasure_datasets(erasure_parameters(dataset="er1000"))
    with pytest.raises(ParameterError, match=r"test_size.*leaves 0 for testing"):
        build_erasure_datasets(erasure_parameters(binary_erasure_channel__num_datapoints=2))


def environment_of(hyper_params, side="train"):
    data = build_erasure_datasets(hyper_params)[side]
    return ErasureEnvironment(hyper_params, data, build_protocol_handler(hyper_params), train=True)


def say(environment, td, symbol):
    """All agents send the same symbol everywhere, without decisions."""
    agents, (channels, positions, _) = (
        len(environment.protocol_handler.agent_names),
        (environment.message_shape),
    )
    td = td.clone()
    size = td.batch_size[0]
    td["agents", "message"] = torch.full((size, agents, channels, positions), symbol)
    td["agents", "decision"] = torch.full((size, agents), 2)
    return environment.step(td)


@pytest.mark.parametrize("protocol", ["nip", "mnip"])
def test_only_provers_lies_are_erased_and_in_every_round_alike(erasure_parameters, protocol):
    environment = environment_of(erasure_parameters(interaction_protocol=protocol, message_size=2))
    handler, data = environment.protocol_handler, environment.dataset
    ids = torch.arange(64)
    td = environment.reset(ids, ids)
    erases = (data["bit"][ids] == 0) & data["lie_erased"][ids]
    assert erases.any()
    assert (~erases).any()
    for now in range(environment.max_rounds):
        active = td["agents", "active"]
        speaker = int(active[0].any(-1).nonzero()[0])
        by_prover = handler.agent_names[speaker] in handler.prover_names
        td = say(environment, td, 1)
        arrived = td["x"][:, now].sum(-1)
        expected = active.any(1).long().unsqueeze(-1).expand_as(arrived).clone()
        if by_prover:
            expected[erases] = 0
        assert torch.equal(arrived.long(), expected)
        assert torch.equal(td["message"][..., 1].bool(), td["x"][:, now, ..., 1].bool())
        assert not td["message"][..., 0].any()


def test_a_0_always_arrives(erasure_parameters):
    environment = environment_of(erasure_parameters())
    ids = torch.arange(64)
    td = say(environment, environment.reset(ids, ids), 0)
    assert td["message"][:, 0, 0, 0].bool().all()


def test_provers_see_the_bit_and_verifiers_only_their_look(erasure_trainer):
    agents = erasure_trainer(interaction_protocol="debate", seed=3).combined_agents
    source = agents._gatherer.source
    data = source.dataset.td[:8].clone()
    td = source.reset(torch.arange(8), torch.arange(8))

    def logits():
        class Changed:
            def gather_data(self, ids):
                return data.select("bit", "observation")[ids]

        with agents.bound_to(Changed()):
            everybody = torch.ones(8, len(agents.agent_names), dtype=torch.bool)
            return dict(zip(agents.agent_names, agents.values(td, everybody).T, strict=True))

    before = logits()
    data["bit"] = 1 - data["bit"]
    without_bit = logits()
    data["observation"] = (data["observation"] + 1) % 3
    without_either = logits()
    for name in ("prover0", "prover1"):
        assert not torch.equal(before[name], without_bit[name])
        assert torch.equal(without_bit[name], without_either[name])
    assert torch.equal(before["verifier"], without_bit["verifier"])
    assert not torch.equal(without_bit["verifier"], without_either["verifier"])


def play_all(e: float, q: float) -> tuple[np.ndarray, np.ndarray]:
    """Accuracy and acceptance of every verifier against every prover, by enumerating all deals.

    A verifier is a bit for each (observation, what arrives), a prover a symbol for each bit.
    """
    verifiers = np.array(list(itertools.product((0, 1), repeat=9))).reshape(-1, 3, 3)
    provers = list(itertools.product((0, 1), repeat=2))
    accuracy, acceptance = (np.zeros((len(verifiers), len(provers))) for _ in range(2))
    for column, prover in enumerate(provers):
        for bit, unseen, erased in itertools.product((0, 1), repeat=3):
            chance = 0.5 * (e if unseen else 1 - e) * (q if erased else 1 - q)
            arrives = NOTHING if erased and prover[bit] == 1 and bit == 0 else prover[bit]
            decision = verifiers[:, NOTHING if unseen else bit, arrives]
            accuracy[:, column] += chance * (decision == bit)
            acceptance[:, column] += chance * (decision == 1)
    return accuracy, acceptance


@settings(deadline=None, max_examples=25)
@given(e=st.floats(0, 1), q=st.floats(0, 1))
def test_the_known_answers_are_those_of_all_verifiers_against_all_provers(e, q):
    section = BinaryErasureChannelParameters(
        observation_erasure_probability=e, lie_erasure_probability=q
    )
    accuracy, acceptance = play_all(e, q)
    # The prover replies best to the verifier; of equally good replies, the verifier's worst.
    best = acceptance >= acceptance.max(1, keepdims=True) - 1e-12
    against_best_reply = np.where(best, accuracy, math.inf).min(1)
    assert against_best_reply.max() == pytest.approx(solution.accuracy_with_prover(section))
    assert accuracy.max() == pytest.approx(solution.accuracy_together(section))
    deaf = (1 - e) + e * 0.5
    assert solution.accuracy_alone(section) == pytest.approx(deaf)


def test_a_verifier_that_believes_every_symbol_is_the_best_together_and_not_when_attacked():
    accuracy, acceptance = play_all(0.8, 0.75)
    best_together = np.flatnonzero(np.isclose(accuracy.max(1), 1.0))
    best = acceptance >= acceptance.max(1, keepdims=True) - 1e-12
    attacked = np.where(best, accuracy, math.inf).min(1)[best_together]
    assert attacked.max() == pytest.approx(0.9)
    # Some say nonsense where a friend never brings them: a 1 arrives, and they have seen a 0.
    assert attacked.min() == pytest.approx(0.5)
