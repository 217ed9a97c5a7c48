"""The contract of the combined agents with trainers and environments."""

from __future__ import annotations

import pytest
import torch

from ratchet.errors import StateError
from ratchet.parameters.trainers import RlParameters

PROTOCOLS = ["nip", "adp", "debate", "merlin_arthur", "mnip", "solo_verifier", "multi_channel_test"]


def agents_of(td, key):
    return td["agents", key]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_evaluating_the_same_frames_gives_what_acting_gave(new_game, protocol):
    game = new_game(interaction_protocol=protocol)
    for frames in game.play():
        out = game.agents.evaluate(frames)
        for key in ("log_prob", "value"):
            torch.testing.assert_close(
                agents_of(out, key), agents_of(frames, key), rtol=1e-5, atol=1e-5
            )


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_agents_that_do_not_act_have_no_log_prob_entropy_or_value(new_game, protocol):
    game = new_game(interaction_protocol=protocol)
    for frames in game.play():
        acting = frames["agents", "active"].any(-1)
        out = game.agents.evaluate(frames)
        for key in ("log_prob", "entropy", "value"):
            assert (agents_of(out, key)[~acting] == 0).all()
        assert (agents_of(out, "entropy")[acting] > 0).all()


def test_what_inactive_agents_do_changes_nothing(new_game):
    game = new_game(interaction_protocol="debate")
    for frames in game.play():
        before = game.agents.evaluate(frames)
        changed = frames.clone()
        idle = ~changed["agents", "active"]
        changed["agents", "message"][idle] += 1
        changed["agents", "decision"][~changed["agents", "can_decide"]] = 0
        after = game.agents.evaluate(changed)
        for key in ("log_prob", "entropy", "value"):
            assert torch.equal(agents_of(before, key), agents_of(after, key))


def test_an_agent_without_a_turn_is_not_computed(new_game):
    game = new_game()
    frames = game.play(steps=1)[0]  # the verifier starts
    game.agents.agents["prover"].body.forward = None  # a call would fail
    game.agents.evaluate(frames)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_messages_never_name_absent_nodes_and_decisions_out_of_turn_are_2(new_game, protocol):
    game = new_game(interaction_protocol=protocol, message_size=2)
    for frames in game.play(size=40, steps=4):
        present = game.environment.gather_data(frames["datapoint_id"])["node_mask"].flatten(1)
        message, active = frames["agents", "message"], frames["agents", "active"]
        rows = torch.arange(len(message))[:, None, None, None].expand_as(message)
        assert present[rows, message][active].all()
        decision, can_decide = frames["agents", "decision"], frames["agents", "can_decide"]
        assert (decision[~can_decide] == 2).all()
        restricted = can_decide & (frames["decision_restriction"] == 1)[:, None]
        assert (decision[restricted] == 2).all()


def test_a_decision_that_must_be_made_is_made_and_one_that_must_not_costs_nothing(new_game):
    game = new_game()
    td = game.reset()
    td["decision_restriction"][:6] = 2
    td["decision_restriction"][6:] = 1
    td = game.agents.act(td, generators=game.generators())
    verifier = game.agents.agent_names.index("verifier")
    decision = td["agents", "decision"][:, verifier]
    assert (decision[:6] != 2).all()
    assert (decision[6:] == 2).all()
    logits = td["agents", "decision_logits"][:, verifier]
    assert logits[:6, 2].isinf().all()
    assert logits[6:, :2].isinf().all()


def test_an_agent_that_speaks_but_may_not_decide_has_no_decision_in_its_log_prob(new_game):
    game = new_game()
    td = game.reset()
    td["agents", "can_decide"][:6] = False
    td = game.agents.act(td, generators=game.generators())
    verifier = game.agents.agent_names.index("verifier")
    assert (td["agents", "decision"][:6, verifier] == 2).all()
    logits = td["agents", "message_logits"][:6, verifier].log_softmax(-1)
    said = td["agents", "message"][:6, verifier].unsqueeze(-1)
    expected = logits.gather(-1, said).flatten()
    for found in (td, game.agents.evaluate(td)):
        torch.testing.assert_close(found["agents", "log_prob"][:6, verifier], expected)


def test_a_prover_answers_in_the_graph_opposite_to_the_question(new_game):
    game = new_game()
    question, answer = game.play(size=40, steps=2)
    n = game.environment.num_symbols // 2
    verifier, prover = (game.agents.agent_names.index(a) for a in ("verifier", "prover"))
    acting = answer["agents", "active"][:, prover, 0]
    assert acting.any()
    asked = question["agents", "message"][acting, verifier, 0, 0]
    answered = answer["agents", "message"][acting, prover, 0, 0]
    assert ((asked < n) != (answered < n)).all()


@pytest.mark.parametrize("resets", [False, True])
def test_a_cached_rollout_equals_an_uncached_one(new_game, resets):
    game = new_game()
    cache, generators, others = game.agents.new_cache(), game.generators(), game.generators()
    td = game.reset()
    for step in range(4):
        cached = game.agents.act(td.clone(), generators=generators, cache=cache)
        plain = game.agents.act(td.clone(), generators=others)
        for key in ("log_prob", "value"):
            torch.testing.assert_close(
                agents_of(cached, key), agents_of(plain, key), rtol=1e-4, atol=1e-5
            )
        assert torch.equal(agents_of(cached, "message"), agents_of(plain, "message"))
        td = game.environment.step(cached)
        if resets:
            done = td["done"]
            ids = torch.arange(int(done.sum())) + 20 + step
            td = game.environment.reset_where(td, done, ids, ids)


def test_the_cache_runs_the_message_free_gnn_once_a_datapoint(new_game, monkeypatch):
    game = new_game()
    body = game.agents.agents["verifier"].body
    rows = []
    invariant = body.invariant
    monkeypatch.setattr(
        body, "invariant", lambda data: rows.append(len(data["adjacency"])) or invariant(data)
    )
    cache, td = game.agents.new_cache(), game.reset()
    for _ in range(3):
        game.agents.act(td, generators=game.generators(), cache=cache)
    assert rows == [12]


def test_acting_is_decided_by_the_generators_alone(new_game):
    game = new_game()
    first = game.play()[-1]["agents", "message"]
    torch.manual_seed(1)
    assert torch.equal(first, game.play()[-1]["agents", "message"])


def test_deterministic_actions_are_the_likeliest(new_game):
    game = new_game()
    frames = game.play(steps=1, deterministic=True)[0]
    verifier = game.agents.agent_names.index("verifier")
    logits = frames["agents", "message_logits"][:, verifier]
    said = frames["agents", "message"][:, verifier].unsqueeze(-1)
    torch.testing.assert_close(logits.gather(-1, said).squeeze(-1), logits.amax(-1))


def test_logits_are_0_where_nobody_acts_and_differentiable_in_evaluation(new_game):
    game = new_game(interaction_protocol="debate")
    for frames in game.play(steps=2):
        out = game.agents.evaluate(frames, with_logits=True)
        logits, active = out["agents", "message_logits"], frames["agents", "active"]
        assert (logits[~active] == 0).all()
        assert logits[active].isfinite().any()
        torch.testing.assert_close(
            logits.detach(), frames["agents", "message_logits"], rtol=1e-5, atol=1e-5
        )
        assert logits.requires_grad


def test_only_the_agents_asked_for_are_evaluated(new_game):
    game = new_game(interaction_protocol="debate")
    frames = game.play(steps=1)[0]
    names = game.agents.agent_names
    out = game.agents.evaluate(frames, agents=["prover1"])
    others = [i for i, name in enumerate(names) if name != "prover1"]
    assert (out["agents", "log_prob"][:, others] == 0).all()


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("linear", [True, False])
def test_gradients_reach_every_parameter(new_game, shared, linear):
    game = new_game(rl={"use_shared_body": shared}, include_linear_message_space=linear)
    total = torch.zeros(())
    for frames in game.play(size=40, steps=3):
        agents = game.agents.evaluate(frames)["agents"]
        total = total + sum(agents[key].square().sum() for key in ("log_prob", "entropy", "value"))
    total.backward()
    dead = [
        name for name, p in game.agents.named_parameters() if p.grad is None or not p.grad.any()
    ]
    assert dead == []


def test_solo_logits_reach_body_and_solo_head(new_game):
    game = new_game(trainer_type="solo_agent")
    data = game.environment.gather_data(torch.arange(10))
    logits = game.agents.solo_logits("verifier", data)
    assert logits.shape == (10, 2)
    torch.nn.functional.cross_entropy(logits, torch.arange(10) % 2).backward()
    own = game.agents.parts["verifier"]
    dead = {n for n, p in own.named_parameters() if p.grad is None or not p.grad.any()}
    # Without messages and unnormalised, their encoder sees zeros only.
    assert dead == {"body.encoder.weight"}


def test_a_solo_prediction_sees_what_the_first_round_shows(new_game):
    game = new_game(pretrain_agents=True)
    frames = game.play(size=40, steps=4)[3]
    game.agents.normalizer.fit(frames)
    td = game.reset(10)
    agent = game.agents.agents["verifier"]
    seen = []
    agent.body.register_forward_hook(lambda module, inputs, output: seen.append(output.pooled))
    game.agents.values(td)
    game.agents.solo_logits("verifier", game.environment.gather_data(td["datapoint_id"]))
    torch.testing.assert_close(seen[0], seen[1])


def test_missing_data_and_missing_heads_say_what_to_do(new_game):
    game = new_game(trainer_type="solo_agent")
    with pytest.raises(StateError, match="no policy head"):
        game.agents.act(game.reset())
    game = new_game()
    with pytest.raises(StateError, match="pretrain_agents: true"):
        game.agents.solo_logits("verifier", game.environment.gather_data(torch.arange(2)))
    td = game.reset()
    game.agents.bind(None)
    with pytest.raises(StateError, match="bind"):
        game.agents.act(td)


def test_random_agents_are_uniform_over_what_is_allowed(new_game):
    game = new_game(agents={"verifier": {"is_random": True}})
    frames = game.play(size=40, steps=1)[0]
    verifier = game.agents.agent_names.index("verifier")
    present = game.environment.gather_data(frames["datapoint_id"])["node_mask"].flatten(1).sum(-1)
    expected = -(present.float().log() + torch.tensor(3.0).log())
    torch.testing.assert_close(frames["agents", "log_prob"][:, verifier], expected)
    assert (frames["agents", "value"][:, verifier] == 0).all()
    groups = game.agents.parameter_groups(RlParameters())
    assert {group.agent for group in groups} == {"prover"}


def test_weights_come_from_the_seed_alone_and_each_agent_has_its_own(new_game):
    torch.manual_seed(0)
    first = new_game().agents.state_dict()
    torch.manual_seed(1)
    second = new_game().agents.state_dict()
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)
    other = new_game(seed=1).agents.state_dict()
    key = "parts.prover.body.gnn.in_weight"
    assert not torch.equal(first[key], other[key])
    assert not torch.equal(first[key], first[key.replace("prover", "verifier")])


def test_building_agents_draws_nothing_from_the_global_generator(new_game):
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    new_game()
    assert torch.equal(torch.rand(1), expected)


def test_zero_knowledge_games_give_the_simulator_decision_logits(new_game):
    game = new_game(protocol_common={"zero_knowledge": True})
    frames = game.play(steps=1)[0]
    simulator = game.agents.agent_names.index("simulator")
    assert frames["agents", "can_decide"][:, simulator].all()
    assert frames["agents", "decision_logits"][:, simulator].isfinite().all()
    assert frames["agents", "decision_logits"][:, simulator].any()
    game.play(steps=4)
