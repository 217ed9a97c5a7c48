"""The trainer ``spg``: its updates through real networks, what it trains, what it refuses."""

from __future__ import annotations

import itertools
from contextlib import ExitStack

import pytest
import torch

from ratchet.errors import ParameterError
from ratchet.fast.dispatch import only_plain_operations
from trainers.registry import trainer_class
from trainers.tensordict.objectives import spg as spg_objective
from trainers.tensordict.objectives.joint_estimator import JOINT_ADVANTAGE, JOINT_KNOWN
from trainers.tensordict.objectives.value_estimators import acting_mask
from trainers.tensordict.states.state import State

_SLOW = pytest.mark.slow
VARIANTS = ("spg", "pspg", "lola", "pola", "sos", "psos")
THREE_LEVELS = [["verifier"], ["prover1"], ["prover0"]]
DEBATE = {"interaction_protocol": "debate", "debate_protocol__max_message_rounds": 4}


def shaping(tiny, variant, **changes):
    """A trainer whose followers' rates are large enough to be seen."""
    base = {"trainer": "spg", "spg__variant": variant, "rl__lr": 1.0, "rl__num_iterations": 2}
    return tiny.trainer(tiny.parameters(**(base | changes)))


class Minibatch:
    """A trainer in the middle of an iteration, with one minibatch of everything."""

    def __init__(self, trainer):
        trainer.initial_state()
        self.trainer, parts = trainer, trainer.components
        self.loss = parts.loss_module
        self.stack = ExitStack()
        trainer._build_train_context(self.stack)
        self.loss.select_agents(parts.freezer.freeze_for(0))
        rollouts = trainer._collect(0)
        parts.replay_buffer.store(rollouts)
        self.stack.enter_context(trainer.combined_agents.remembering(parts.replay_buffer.frames))
        self.loss.rates = {
            id(p): g["lr"] for g in parts.optimizer.param_groups for p in g["params"]
        }
        self.loss.generator = torch.Generator().manual_seed(0)
        parts.replay_buffer.minibatch_size = 10_000
        with torch.no_grad():  # not the policies that played, so that ratios are not 1
            for param in itertools.chain(*self.loss.actor_params.values()):
                param += 0.05 * torch.randn(param.shape, generator=self.loss.generator)
        (self.batch,) = parts.replay_buffer.minibatches(self.loss.generator, self.loss.in_keys)

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.stack.close()

    def gradients(self):
        """Return the optimizer's gradient of the complete policy loss, by agent."""
        params = self.loss.actor_params
        objective = self.loss(self.batch)["loss_objective"]
        found = torch.autograd.grad(objective, list(itertools.chain(*params.values())))
        flat = iter(found)
        return {n: torch.cat([next(flat).flatten() for _ in own]) for n, own in params.items()}


class BruteForce:
    """The Loaded DiCE objective itself, differentiated by autograd through the plain networks."""

    def __init__(self, minibatch):
        loss, rows = minibatch.loss, minibatch.batch
        frames = rows.reshape(-1)
        self.names = loss.combined_agents.agent_names
        self.params = loss.actor_params
        with only_plain_operations():
            log_prob = loss.evaluate(frames, as_stored=True).log_prob.view(*rows.batch_size, -1)
        mask = loss.learning_mask(frames)
        joint = loss._batch(rows, mask).advantage
        acting, old = acting_mask(rows), rows.get(("agents", "log_prob"))
        count = mask.sum(0).clamp(min=1)
        self.losses = {
            name: self.dice(loss, log_prob, old, joint[..., i] / count[i], acting, rows["episode"])
            for i, name in enumerate(self.names)
        }

    def dice(self, loss, log_prob, old, advantage, acting, episode):
        if loss.clips:
            ratio, epsilon = (log_prob - old).exp(), loss.clip_epsilon
            wins = advantage.unsqueeze(-1) > 0
            moved = torch.where(wins, ratio.clamp(max=1 + epsilon), ratio.clamp(min=1 - epsilon))
        else:
            moved = (log_prob - log_prob.detach()).exp()
        factor = torch.where(acting, 1 + moved - moved.detach(), 1.0).log().sum(-1)
        steps = torch.arange(factor.shape[1])
        until = (episode.unsqueeze(2) == episode.unsqueeze(1)) & (steps <= steps.unsqueeze(1))
        total = (until.float() @ factor.unsqueeze(2)).squeeze(2)
        return -(advantage * (total.exp() - (total - factor).exp())).sum()

    def gradient(self, scalar, agent, *, graph=False):
        params = self.params[agent]
        found = torch.autograd.grad(
            scalar, params, create_graph=graph, retain_graph=True, allow_unused=True
        )
        found = [
            torch.zeros_like(p) if g is None else g for p, g in zip(params, found, strict=True)
        ]
        return torch.cat([g.flatten() for g in found])

    def mixed(self, loss, leader, follower, vector):
        inner = self.gradient(self.losses[loss], follower, graph=True).dot(vector)
        return self.gradient(inner, leader)

    def gradient_of(self, loss, agent):
        return self.gradient(self.losses[loss], agent)


def brute_force_lola(exact, groups, rates):
    direction = {}
    for place in reversed(range(len(groups))):
        behind = [name for group in groups[place + 1 :] for name in group]
        for leader in groups[place]:
            total = exact.gradient_of(leader, leader)
            for f in behind:
                v = rates[f] * exact.gradient_of(leader, f)
                total = total - exact.mixed(f, leader, f, v)
                total = total - exact.mixed(leader, leader, f, rates[f] * direction[f])
            direction[leader] = total
    return direction


@pytest.mark.parametrize("variant", ["lola", "pola"])
@pytest.mark.parametrize("sequence", [None, THREE_LEVELS])
def test_updates_are_those_of_the_objective_differentiated_by_brute_force(tiny, variant, sequence):
    trainer = shaping(tiny, variant, spg__stackelberg_sequence=sequence, **DEBATE)
    with Minibatch(trainer) as minibatch:
        groups, rates = minibatch.loss.groups, minibatch.loss._rates_of
        exact = BruteForce(minibatch)
        expected = brute_force_lola(exact, groups, {n: rates(n) for n in exact.names})
        found = minibatch.gradients()
        for name in exact.names:
            torch.testing.assert_close(found[name], expected[name], rtol=1e-3, atol=1e-5)
            shift = expected[name] - exact.gradient_of(name, name)
            assert (shift.norm() > 1e-3 * expected[name].norm()) == (name not in groups[-1])


@pytest.mark.parametrize("variant", ["sos", "psos"])
def test_stable_updates_lie_between_looking_ahead_and_lola(tiny, variant):
    found = {}
    for name, own in ((variant, {}), ("lola", {}), ("ahead", {})):
        kind = {"lola": "pola" if variant == "psos" else "lola", "ahead": variant}.get(name, name)
        with Minibatch(shaping(tiny, kind, **own)) as minibatch:
            if name == "ahead":
                minibatch.loss.parameters_of_spg = minibatch.loss.parameters_of_spg.model_copy(
                    update={"sos_scaling_factor": 0.0}
                )
            weight = float(minibatch.loss(minibatch.batch)["shaping_weight"])
            found[name] = (minibatch.gradients()["verifier"], weight)
    (update, p), (lola, _), (ahead, p_ahead) = found[variant], found["lola"], found["ahead"]
    if p_ahead == 0.0:  # where the criterion binds at all, no scaling means no shaping
        torch.testing.assert_close(update, ahead + p * (lola - ahead), rtol=1e-3, atol=1e-5)
    else:
        assert p == 1.0
        torch.testing.assert_close(update, lola, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("variant", ["spg", "pspg"])
def test_hessian_products_and_updates_of_spg_through_networks(tiny, variant, monkeypatch):
    monkeypatch.setattr(spg_objective, "CURVATURE_SHARE", 1)
    with Minibatch(shaping(tiny, variant)) as minibatch:
        loss, exact = minibatch.loss, BruteForce(minibatch)
        mask = loss.learning_mask(minibatch.batch.reshape(-1))
        batch = loss._batch(minibatch.batch, mask)
        curved = loss._curvature(minibatch.batch, batch, loss.groups)
        size = sum(p.numel() for p in loss.actor_params["prover"])
        vectors = torch.randn(3, size, generator=loss.generator)
        products = curved.hessian_products("prover", vectors)
        for vector, product in zip(vectors, products, strict=True):
            expected = exact.mixed("prover", "prover", "prover", vector)
            torch.testing.assert_close(product, expected, rtol=1e-3, atol=1e-5)
            alone = curved.hessian_products("prover", vector.unsqueeze(0))[0]
            torch.testing.assert_close(alone, product, rtol=1e-4, atol=1e-6)
        monkeypatch.setattr(loss, "_solve", lambda game, agent, vector: 3 * vector)
        v = 3 * exact.gradient_of("verifier", "prover")
        shift = exact.mixed("prover", "verifier", "prover", v)
        expected = exact.gradient_of("verifier", "verifier") - shift
        torch.testing.assert_close(
            minibatch.gradients()["verifier"], expected, rtol=1e-3, atol=1e-5
        )
        assert shift.norm() > 1e-4


@pytest.mark.parametrize("protocol", [{}, DEBATE])
def test_without_shaping_the_gradient_is_that_of_ppo(tiny, protocol):
    with Minibatch(shaping(tiny, "pola", **protocol)) as minibatch:
        loss = minibatch.loss
        loss.rates = dict.fromkeys(loss.rates, 0.0)
        found = minibatch.gradients()
        ppo = tiny.trainer(tiny.parameters(**protocol))._get_loss_module_and_gae()[0]
        ppo.actor_network, ppo.learning_agents = loss.actor_network, loss.learning_agents
        losses = ppo(minibatch.batch.reshape(-1))
        for name, params in loss.actor_params.items():
            expected = torch.autograd.grad(
                losses["loss_objective"], params, retain_graph=True, allow_unused=True
            )
            flat = [
                torch.zeros_like(p) if g is None else g
                for p, g in zip(params, expected, strict=True)
            ]
            expected = torch.cat([g.flatten() for g in flat])
            torch.testing.assert_close(found[name], expected, rtol=1e-4, atol=1e-6)
        mine = loss(minibatch.batch)
        for name in ("loss_critic", "loss_entropy", "policy_loss", "kl", "clip_fraction"):
            torch.testing.assert_close(mine[name], losses[name])


def test_the_joint_advantage_is_the_usual_one_on_own_frames(tiny):
    with Minibatch(shaping(tiny, "psos", **DEBATE)) as minibatch:
        rows = minibatch.batch
        learns = rows.get(("agents", "learns"))
        joint, usual = rows.get(JOINT_ADVANTAGE), rows.get(("agents", "advantage"))
        torch.testing.assert_close(joint[learns], usual[learns])
        elsewhere = rows.get(JOINT_KNOWN) & ~learns
        assert (joint[elsewhere] != 0).any()


def test_value_bodies_of_their_own_get_gradients_from_the_critic_only(tiny):
    trainer = shaping(tiny, "psos", rl__use_shared_body=False, rl__lr=0.01)
    with Minibatch(trainer) as minibatch:
        body = minibatch.trainer.combined_agents.parts["verifier"]["value_body"]
        actor = {id(param) for param in minibatch.loss.actor_params["verifier"]}
        assert not any(id(param) in actor for param in body.parameters())
    before = trainer.initial_state()
    trainer.run_iterations(0, 1)
    for agent, tensors in trainer.state.agents.items():
        changed = [n for n, t in tensors.items() if not torch.equal(t, before.agents[agent][n])]
        assert {n.partition(".")[0] for n in changed} == {n.partition(".")[0] for n in tensors}


def test_a_follower_that_is_off_is_not_shaped_and_stays_the_same_bit_for_bit(tiny):
    off = {"kind": "contiguous_periodic", "period": 2, "start": 1, "stop": 2}
    trainer = shaping(tiny, "psos", agents__prover__update_schedule=off, rl__lr=0.01)
    before = trainer.initial_state()
    (first, second) = trainer.run_iterations(0, 1) + trainer.run_iterations(1, 2)
    assert first["verifier.shaping_share"] == 0
    assert second["verifier.shaping_share"] > 0
    trainer.initial_state()
    trainer.run_iterations(0, 1)
    after = trainer.state
    same = State(agents={"prover": after.agents["prover"]})
    assert same == State(agents={"prover": before.agents["prover"]})
    assert after.agents["verifier"] is not None
    assert State(agents={"verifier": after.agents["verifier"]}) != State(
        agents={"verifier": before.agents["verifier"]}
    )


def test_followers_learn_at_the_rates_that_the_optimizer_has_for_each_of_their_parameters(tiny):
    factors = {
        "rl__body_lr_factor": {"actor": 0.5, "critic": 0.5},
        "agents__prover__agent_lr_factor": {"actor": 3.0, "critic": 3.0},
        "agents__prover__gnn_lr_factor": {"actor": 0.1, "critic": 0.1},
    }
    trainer = shaping(tiny, "psos", rl__lr=0.01, rl__anneal_lr=True, **factors)
    trainer.initial_state()
    trainer.run_iterations(0, 2)
    loss = trainer.components.loss_module
    expected = []
    for group in trainer.combined_agents.parameter_groups(trainer.hyper_params.rl):
        if group.agent == "prover" and group.part != "value":
            rate = {"gnn": 0.15, "body": 1.5, "policy": 3.0}[group.part]
            expected += [0.5 * 0.01 * rate] * sum(param.numel() for param in group.params)
    torch.testing.assert_close(loss._rates_of("prover"), torch.tensor(expected))


PROTOCOLS = {
    "nip": {},
    "adp": {},
    "debate": {"debate_protocol__max_message_rounds": 3},
    "merlin_arthur": {},
    "mnip": {"mnip_protocol__max_message_rounds": 3},
    "multi_channel_test": {},
    "nip, zero knowledge": {"protocol_common__zero_knowledge": True},
    "debate, zero knowledge": {
        "debate_protocol__max_message_rounds": 3,
        "protocol_common__zero_knowledge": True,
    },
}


_QUICK = ("nip", "merlin_arthur", "debate, zero knowledge")


@pytest.mark.in_turn(2)
@pytest.mark.parametrize(
    "name", [name if name in _QUICK else pytest.param(name, marks=_SLOW) for name in PROTOCOLS]
)
def test_two_iterations_under_every_protocol(tiny, name):
    trainer = shaping(
        tiny,
        "pspg" if name.startswith("nip") else "psos",
        interaction_protocol=name.partition(",")[0],
        rl__lr=0.01,
        rl__num_epochs=1,
        rl__minibatch_size=32,
        **PROTOCOLS[name],
    )
    trainer.initial_state()
    found = trainer.run_iterations(0, 2)
    for metrics in found:
        assert torch.tensor(list(metrics.values())).isfinite().all()
    assert max(metrics["verifier.shaping_share"] for metrics in found) > 0


_CUT = [v if v == "pspg" else pytest.param(v, marks=_SLOW) for v in VARIANTS]


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("variant", _CUT)
def test_any_cut_into_stages_gives_the_same_bits(tiny, tmp_path, variant):
    hyper_params = tiny.parameters(trainer="spg", spg__variant=variant, rl__num_iterations=2)
    whole = tiny.trainer(hyper_params)
    whole.initial_state()
    metrics = whole.run_iterations(0, 2)
    first = tiny.trainer(hyper_params)
    first.initial_state()
    found = first.run_iterations(0, 1)
    first.state.save(tmp_path / "state")
    torch.manual_seed(4711)  # nothing may depend on the global generator
    second = tiny.trainer(hyper_params)
    second.state = State.load(tmp_path / "state")
    assert found + second.run_iterations(1, 2) == metrics
    assert second.state == whole.state


@pytest.mark.parametrize("solver", ["nystrom", "conj_grad", "neumann"])
def test_every_solver_shapes(tiny, solver):
    trainer = shaping(tiny, "pspg", spg__ihvp_variant=solver, rl__lr=0.01)
    trainer.initial_state()
    (stats,) = trainer.run_iterations(0, 1)
    assert stats["verifier.shaping_share"] > 0
    assert stats["prover.shaping_share"] == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"interaction_protocol": "solo_verifier"}, "no agent is shaped"),
        ({"spg__stackelberg_sequence": [["verifier"], ["provr"]]}, "Did you mean 'prover'"),
        ({"spg__stackelberg_sequence": [["verifier"]]}, "prover missing"),
        ({"spg__stackelberg_sequence": [["verifier"], ["prover", "verifier"]]}, "verifier twice"),
        ({"spg__stackelberg_sequence": [["verifier", "prover"], []]}, "empty group"),
        ({"spg__stackelberg_sequence": [["verifier", "prover"]]}, "no agent is shaped"),
        ({"agents__prover__is_random": True}, "no agent is shaped"),
        ({"agents__verifier__use_manual_architecture": True}, "no agent is shaped"),
        (
            {
                "agents___default__update_schedule": {
                    "kind": "alternating_periodic",
                    "period": 2,
                    "first_agent": "prover",
                }
            },
            "no agent is shaped",
        ),
        ({"ppo__loss_type": "kl_penalty"}, r"ppo\.loss_type"),
        ({"spg__sos_scaling_factor": 1.5}, r"spg\.sos_scaling_factor"),
    ],
)
def test_what_cannot_be_trained_is_refused_beforehand_with_the_reason(tiny, changes, message):
    with pytest.raises(ParameterError, match=message):
        trainer_class(tiny.parameters(trainer="spg", **changes))


def test_the_sequence_is_the_protocols_unless_it_is_given(tiny):
    for sequence, expected in (
        (None, (("verifier",), ("prover0", "prover1"))),
        ([["prover0"], ["prover1", "verifier"]], (("prover0",), ("prover1", "verifier"))),
    ):
        hyper_params = tiny.parameters(trainer="spg", spg__stackelberg_sequence=sequence, **DEBATE)
        assert tiny.trainer(hyper_params).components.loss_module.groups == expected
        assert type(hyper_params).from_dict(hyper_params.to_dict()) == hyper_params


def _train_key(tiny, **changes):
    hyper_params = tiny.parameters(trainer="spg", **changes)
    return trainer_class(hyper_params).stage_key_parameters(hyper_params, "train")


@pytest.mark.parametrize(
    ("variant", "change", "is_read"),
    [
        ("psos", {"spg__sos_scaling_factor": 0.4}, True),
        ("psos", {"spg__additional_lola_term": False}, False),
        ("psos", {"spg__ihvp_rank": 3}, False),
        ("pola", {"spg__additional_lola_term": False}, True),
        ("pola", {"spg__sos_threshold_factor": 0.2}, False),
        ("pspg", {"spg__ihvp_rank": 3}, True),
        ("pspg", {"spg__ihvp_num_iterations": 3}, False),
        ("pspg", {"spg__ihvp_variant": "neumann"}, True),
        ("psos", {"spg__stackelberg_sequence": [["prover"], ["verifier"]]}, True),
        ("psos", {"ppo__clip_epsilon": 0.1}, True),
        ("psos", {"ppo__kl_target": 0.1}, False),
        ("psos", {"reinforce__use_advantage_and_critic": True}, False),
    ],
)
def test_keys_have_what_the_variant_reads(tiny, variant, change, is_read):
    base = {"spg__variant": variant}
    assert (_train_key(tiny, **base) != _train_key(tiny, **base, **change)) == is_read


def test_keys_of_other_stages_do_not_know_how_agents_learn(tiny):
    keys = []
    for variant in ("spg", "psos"):
        hyper_params = tiny.parameters(trainer="spg", spg__variant=variant, pretrain_agents=True)
        found = trainer_class(hyper_params).stage_key_parameters
        stages = [("initial_state", None), ("test", None), ("pretrain", "prover")]
        keys.append([found(hyper_params, *stage) for stage in stages])
    assert keys[0] == keys[1]
