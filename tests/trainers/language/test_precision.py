"""Language models in bfloat16 learn with float32 masters, and activations may be computed twice."""

from __future__ import annotations

import pytest
import torch

from ratchet.models.master_weights import MasterWeights
from tests.trainers.language.test_language_trainer import SMALL, build, keep, load, parameters


def in_precision(precision, micro_batch_size=None, **settings):
    agent = {
        "max_tokens": 5,
        "small_model": SMALL,
        "precision": precision,
        "warm_up": {"num_steps": 10, "batch_size": 8},
    }
    language = {"optimizer": {"lr": 1e-6}, "micro_batch_size": micro_batch_size}
    trainer = build(parameters(agents={"_default": agent}, language=language), **settings)
    trainer.initial_state()
    return trainer


def test_recomputing_activations_is_a_setting_and_changes_no_bit():
    weights = []
    for recomputes in (None, True):
        trainer = in_precision("bfloat16", recompute_activations=recomputes)
        assert trainer.learner.model.recomputes_activations is bool(recomputes)
        trainer.run_iterations(0, 2)
        weights.append(trainer.learner.take_weights().tensors)
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())


def test_parts_of_a_bfloat16_step_are_added_in_float32_and_have_another_key(monkeypatch):
    parts, take = [], MasterWeights.take_gradients

    def count(masters):
        parts.append(any(weight.grad is not None for weight in masters._computing))
        take(masters)

    monkeypatch.setattr(MasterWeights, "take_gradients", count)
    norms, keys = [], []
    for size in (None, 2):
        trainer = in_precision("bfloat16", micro_batch_size=size)
        (metrics,) = trainer.run_iterations(0, 1)
        norms.append(metrics["actor/grad_norm"])
        keys.append(trainer.stage_key_parameters(trainer.hyper_params, "train"))
    assert sum(parts) > 2, "more than one part a step"
    assert norms[1] == pytest.approx(norms[0], rel=1e-2)
    assert [each.get("gradients") for each in keys] == [None, "float32"]
    whole = in_precision("float32", micro_batch_size=2)
    assert "gradients" not in whole.stage_key_parameters(whole.hyper_params, "train")


def test_small_steps_in_bfloat16_are_not_lost(tmp_path):
    moves, changed = {}, {}
    for precision in ("float32", "bfloat16"):
        trainer = in_precision(precision)
        learner = trainer.learner
        masters = learner._optimizer._masters.weights
        before = [each.detach().clone() for each in masters]
        for iteration in range(4):
            trainer.run_iterations(iteration, iteration + 1)
            for master, weight in zip(masters, learner.model.parameters(), strict=True):
                assert master.dtype == torch.float32
                assert torch.equal(weight.detach(), master.detach().to(weight.dtype))
        pairs = list(zip(masters, before, strict=True))
        difference = torch.cat([(new.detach() - old).abs().flatten() for new, old in pairs])
        moves[precision] = float(difference.mean())
        changed[precision] = float((difference > 0).float().mean())
    assert moves["bfloat16"] == pytest.approx(moves["float32"], rel=0.05)
    assert changed["bfloat16"] == pytest.approx(changed["float32"], abs=0.01)


def test_masters_are_part_of_the_state_and_older_states_are_converted(tmp_path):
    through = in_precision("bfloat16")
    whole = through.run_iterations(0, 3)
    first = in_precision("bfloat16")
    keep(first, tmp_path, "initial")
    parts = first.run_iterations(0, 2)
    keep(first, tmp_path, "two")
    state = first.learner.take_state()
    second = in_precision("bfloat16")
    load(second, tmp_path, "two")
    assert parts + second.run_iterations(2, 3) == whole
    weights = [each.learner.take_weights().tensors for each in (second, through)]
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
    moments = {
        index: {n: v.bfloat16() if v.ndim else v for n, v in each.items()}
        for index, each in state["optimizer"]["moments"].items()
    }
    earlier = {**state, "optimizer": {"moments": moments, "done": state["optimizer"]["done"]}}
    second.learner.put_state(earlier)
    restored = second.learner.take_state()["optimizer"]
    assert all(
        value.dtype == torch.float32
        for part in (restored["masters"], *restored["moments"].values())
        for value in part.values()
    )
    for index, weight in enumerate(second.learner.model.parameters()):
        assert torch.equal(restored["masters"][index], weight.detach().float())


def test_weights_that_a_callback_restores_are_trained_further():
    trainer = in_precision("bfloat16")
    learner = trainer.learner
    weights = learner.take_weights()
    trainer.run_iterations(0, 2)
    learner.put_weights(weights)
    masters = learner._optimizer._masters.weights
    for master, weight in zip(masters, learner.model.parameters(), strict=True):
        assert torch.equal(master, weight.float())
