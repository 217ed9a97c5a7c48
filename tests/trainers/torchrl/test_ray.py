"""The library's collectors on a Ray cluster; ``make test-ray``, since a cluster takes a while."""

from __future__ import annotations

import logging

import pytest

from trainers.torchrl.assembly import has_workers, is_reproducible

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]


def test_collectors_on_a_cluster_train_and_are_warned_of(small, caplog, monkeypatch):
    ray = pytest.importorskip("ray", reason="needs the extra `ray`")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    trainer = small.make(
        "ppo",
        collector__backend="ray",
        collector__num_collectors=1,
        trainer__weight_update_map={"policy": "loss_module.actor_network"},
    )
    try:
        with caplog.at_level(logging.WARNING):
            start = trainer.initial_state()
        assert "depends on timing" in caplog.text
        assert has_workers(trainer.torchrl_trainer)
        assert not is_reproducible(trainer.torchrl_trainer)
        metrics = trainer.run_iterations(0, 2)
        assert metrics[-1]["collected_frames"] == 96.0
        assert trainer.state != start
    finally:
        trainer.close()
        ray.shutdown()
