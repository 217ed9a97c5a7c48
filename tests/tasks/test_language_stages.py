"""Stages of an arm with a token-level language model: their order and inputs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from ratchet import ExperimentSettings, HyperParameters
from ratchet.store.store import StageStore
from tasks.language.session import LanguageArmSession
from tasks.stages.driver import run_stages
from tasks.stages.failures import PrefetchFailedError
from tasks.stages.families import make_keys
from tasks.stages.sequence import StoredStageLayout, flatten_steps
from trainers.language.trainer import LanguageTrainer


def keys_of(**language):
    small = {"layers": 1, "d_model": 8, "heads": 2, "context_length": 32}
    hyper_params = HyperParameters(
        scenario="language_task",
        dataset="reverse",
        trainer="grpo",
        rl={"num_iterations": 4},
        language_task={"num_train": 8, "num_test": 2, "reverse": {"length": 2, "num_symbols": 4}},
        agents={"_default": {"max_tokens": 3, "small_model": small, "warm_up": {"num_steps": 1}}},
        language={"tasks_per_step": 2, "group_size": 2, **language},
    )
    return make_keys("main", hyper_params)


@pytest.fixture
def store(tmp_path):
    return StageStore(tmp_path / "store", reserve_bytes=0)


def steps_of(keys, store, **settings):
    layout = StoredStageLayout(store, ExperimentSettings(**settings))
    return list(keys.stages(layout))


def told(steps):
    return [
        f"{c.stage} {c.iteration}" for c in flatten_steps(steps) if c.stage in ("rollouts", "train")
    ]


@pytest.mark.slow
def test_one_step_behind_each_step_overlaps_with_the_next_rollouts(store):
    keys = keys_of(mode="one_step_behind")
    steps = steps_of(keys, store, iterations_per_task=1)
    parallel = [[next(chain) for chain in step] for step in steps if isinstance(step, tuple)]
    names = [[call.stage for call in calls] for calls in parallel]
    assert names == [["rollouts", "train"]] * 4
    pairs = [(ahead.iteration, train.iteration) for ahead, train in parallel]
    assert pairs == [(1, 1), (2, 2), (3, 3), (4, 4)], "a longer run extends the same state"
    steps = steps_of(keys, store, iterations_per_task=1)
    assert told(steps)[:3] == ["rollouts 0", "rollouts 1", "train 1"]
    ahead, _ = parallel[2]
    assert ahead.inputs["state"] == keys.state_key(2), "expected the weights before the step"
    fused = steps_of(keys, store, iterations_per_task=4)
    assert told(fused) == ["train 4"]
    sampled = steps_of(keys, store, iterations_per_task=4, rollout_sample_period=2)
    assert told(sampled) == ["rollouts 0", "train 2", "rollouts 2", "train 4"]
    synchronous = steps_of(keys_of(), store, iterations_per_task=1)
    assert told(synchronous)[:4] == ["rollouts 0", "train 1", "rollouts 1", "train 2"]


def test_states_in_memory_are_not_read_again(store, monkeypatch):
    keys = keys_of()
    loaded = []
    load = LanguageTrainer.load_state

    def load_state(self, folder, key, folder_of):
        loaded.append(key)
        load(self, folder, key, folder_of)

    monkeypatch.setattr(LanguageTrainer, "load_state", load_state)
    settings = ExperimentSettings(iterations_per_task=1, progress="none")
    session = LanguageArmSession(keys, settings, store)
    run_stages(session)
    session.close()
    assert loaded == [keys.state_key(0)], "after the first, each stage must use the state in memory"


def test_a_stage_waits_for_a_concurrent_computation(store):
    keys = keys_of(mode="one_step_behind")
    session = LanguageArmSession(keys, ExperimentSettings(), store)
    call = keys.rollouts(1)
    assert session.find_result(call) is None
    with ThreadPoolExecutor(1) as thread, session.running([call]) as running:
        waiting = thread.submit(session.find_result(call))
        assert not wait([waiting], 0.05).done
        running[call.key].cancel()  # as after a failure
        with pytest.raises(PrefetchFailedError, match="rollouts main 1, which ran concurrently"):
            waiting.result(5)
    assert session.find_result(call) is None
    session.close()
