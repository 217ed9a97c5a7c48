"""A stage's key contains the parameters that the stage reads, and no others."""

from __future__ import annotations

import pytest

from ratchet.errors import UnknownNameError
from trainers.registry import trainer_class
from trainers.staged import runs_in_stages
from trainers.tensordict.vanilla_ppo import VanillaPpoTrainer

SCHEDULE = {"kind": "contiguous_periodic", "period": 2, "start": 0, "stop": 1}


def _key(hyper_params, stage, agent=None):
    return trainer_class(hyper_params).stage_key_parameters(hyper_params, stage, agent)


def _differs(tiny, stage, agent=None, **changes):
    one, other = (_key(p, stage, agent) for p in (tiny.parameters(), tiny.parameters(**changes)))
    return one != other


@pytest.mark.parametrize(
    ("change", "stages"),
    [
        ({"seed": 1}, {"initial_state", "pretrain", "train", "test"}),
        ({"rl__lr": 0.1}, {"train"}),
        ({"rl__num_iterations": 9}, set()),
        ({"rl__num_test_iterations": 9}, {"test"}),
        ({"rl__num_normalization_steps": 64}, {"initial_state"}),
        ({"rl__frames_per_batch": 64}, {"initial_state", "train", "test"}),
        ({"ppo__clip_epsilon": 0.1}, {"train"}),
        ({"solo_agent__num_epochs": 9}, {"pretrain"}),
        ({"agents__prover__d_gnn": 8}, {"initial_state", "pretrain", "train", "test"}),
        ({"agents__verifier__d_gnn": 8}, {"initial_state", "train", "test"}),
        ({"debate_protocol__max_message_rounds": 3}, set()),
        # Pretraining's input is the initial state; it does not read the protocol.
        ({"nip_protocol__max_message_rounds": 3}, {"initial_state", "train", "test"}),
        ({"agents__prover__agent_lr_factor": {"actor": 2, "critic": 2}}, {"pretrain", "train"}),
        ({"agents__prover__update_schedule": SCHEDULE}, {"train"}),
        ({"agents__verifier__checkpoint_run_id": "x"}, set()),
        ({"base_run__run_id": "x"}, set()),
    ],
)
def test_a_change_reaches_the_stages_that_read_it_and_no_other(tiny, change, stages):
    # Pretraining is that of the prover, in an experiment that pretrains.
    change = {"pretrain_agents": True, **change}
    base = {"pretrain_agents": True}
    reached = set()
    for stage in ("initial_state", "pretrain", "train", "test"):
        agent = "prover" if stage == "pretrain" else None
        keys = [_key(tiny.parameters(**c), stage, agent) for c in (base, change)]
        if keys[0] != keys[1]:
            reached.add(stage)
    assert reached == stages


def test_the_number_of_iterations_counts_where_the_rate_is_annealed(tiny):
    keys = [
        _key(tiny.parameters(rl__anneal_lr=True, rl__num_iterations=n), "train") for n in (3, 4)
    ]
    assert keys[0] != keys[1]


def test_solo_agents_epochs_do_not_depend_on_how_many_follow(tiny):
    keys = [
        _key(tiny.parameters(trainer="solo_agent", solo_agent__num_epochs=n), "train")
        for n in (3, 4)
    ]
    assert keys[0] == keys[1]
    assert _differs(tiny, "train", trainer="solo_agent")


def test_a_custom_trainer_may_read_every_section(tiny):
    class Mine(VanillaPpoTrainer):
        pass

    keys = [
        Mine.stage_key_parameters(tiny.parameters(**change), "train")
        for change in ({}, {"ppo__clip_epsilon": 0.1})
    ]
    assert keys[0] != keys[1]


def test_more_iterations_of_a_custom_trainer_go_on_unless_it_reads_how_many_there_are(tiny):
    class Mine(VanillaPpoTrainer):
        pass

    class Counting(VanillaPpoTrainer):
        @classmethod
        def reads_num_iterations(cls, hyper_params):
            return True

    for found, reads in ((Mine, False), (Counting, True)):
        for stage in ("initial_state", "pretrain", "train", "test"):
            few, many = (
                found.stage_key_parameters(tiny.parameters(rl__num_iterations=n), stage)
                for n in (3, 4)
            )
            assert (few != many) == reads


def test_where_ratios_are_clipped_nothing_reads_the_penalty(tiny):
    """So its parameters are in no key."""
    changes = {"ppo__kl_target": 0.5, "ppo__kl_beta": 9, "ppo__kl_increment": 5}
    states = []
    for hyper_params in (tiny.parameters(), tiny.parameters(**changes, ppo__kl_decrement=0.9)):
        trainer = tiny.trainer(hyper_params)
        trainer.initial_state()
        trainer.run_iterations(0, 2)
        states.append(trainer.state)
    assert states[0] == states[1]
    assert not _differs(tiny, "train", **changes)
    assert _differs(tiny, "train", ppo__loss_type="kl_penalty")


def test_sections_of_other_trainers_are_left_out_with_pretraining_too(tiny):
    for stage in ("initial_state", "train", "test"):
        names = set(_key(tiny.parameters(pretrain_agents=True), stage))
        assert not names & {"reinforce", "solo_agent", "spg", "text_rl", "torchrl"}


def test_stages_are_refused_once_a_subclass_has_loops_of_its_own():
    class Mine(VanillaPpoTrainer):
        def _run_train_loop(self, iteration_context):
            super()._run_train_loop(iteration_context)

    assert runs_in_stages(VanillaPpoTrainer)
    assert not runs_in_stages(Mine)


def test_an_unknown_stage_is_named(tiny):
    with pytest.raises(UnknownNameError, match=r"unknown 'trian'\. Did you mean 'train'"):
        _key(tiny.parameters(), "trian")
