"""One model on the nodes of a Ray cluster: two of them on this machine, without a common disk."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from ratchet.errors import RankError
from ratchet.language_models.engines.in_process import InProcessEngine
from ratchet.language_models.engines.rollouts import SampleRequest
from ratchet.language_models.local.loading import load_language_model
from ratchet.language_models.local.small_models import SmallModelShape, make_small_model
from tests.flows import test_vllm_flow
from tests.flows.test_language_flow import RANKS, trained
from trainers.language.grpo import GrpoTrainer

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

LONGER = {
    **RANKS,
    "rl": {"num_iterations": 8},
    "agents": {
        "_default": {**RANKS["agents"]["_default"], "warm_up": {"num_steps": 60, "batch_size": 8}}
    },
}
SAMPLED_BY_VLLM = {
    **test_vllm_flow.CHOSEN,
    "rl": LONGER["rl"],
    "language": {**RANKS["language"], **test_vllm_flow.CHOSEN["language"]},
}
SHAPE = SmallModelShape(d_model=16, layers=1, heads=2, context_length=32)
NODE = {"num_cpus": 1, "object_store_memory": 100 * 2**20}


@pytest.fixture
def cluster(monkeypatch):
    """A cluster of two nodes, each with room for one rank."""
    cluster_utils = pytest.importorskip("ray.cluster_utils", reason="needs the extra `ray`")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    cluster = cluster_utils.Cluster(
        initialize_head=True, head_node_args={**NODE, "include_dashboard": False}
    )
    cluster.add_node(**NODE)
    yield cluster
    cluster.shutdown()


@pytest.mark.parametrize(
    "chosen",
    [LONGER, pytest.param(SAMPLED_BY_VLLM, marks=test_vllm_flow.pytestmark)],
    ids=["ranks sample", "vLLM samples"],
)
def test_ranks_of_two_nodes_give_the_same_bits_if_one_node_is_lost(lab, tmp_path, cluster, chosen):
    cut = {"iterations_per_task": 1, "retries": 1, "retry_delay_seconds": 0}
    settings = lab.settings(**cut, runner="ray", cluster_address=cluster.address)
    process, path = lab.start(chosen, settings)
    stages = lab.folder / "home" / "store" / "stages"
    while not stages.exists() or len(list(stages.glob("*/state"))) < 4:
        assert process.poll() is None
        time.sleep(0.02)
    (lost,) = cluster.worker_nodes
    cluster.remove_node(lost, allow_graceful=False)
    cluster.add_node(**NODE)
    code, output = process.wait(480), (lab.folder / "output-1.txt").read_text()
    assert code == 0, output
    failure = r"failed at attempt 1, retrying: RankError: rank \d of .*world_size 2: "
    assert len(re.findall(failure, output)) == 1
    result = lab.read(path)
    other = lab.run(chosen, lab.settings(**cut, home=str(tmp_path / "other")))
    assert any(dict(values)["actor/grad_norm"] > 0 for *_, values in trained(lab, other)[4:])
    assert trained(lab, result) == trained(lab, other)
    assert result["states"] == other["states"]
    assert lab.weights(result) == lab.hashes(
        tmp_path / "other" / "store" / "stages" / other["states"]["main"]
    )


def test_a_cluster_without_room_is_named(cluster, tmp_path):
    ray = pytest.importorskip("ray")
    make_small_model(tmp_path / "model", alphabet="ab", shape=SHAPE)
    trainer = GrpoTrainer(OmegaConf.create({"train_service": {"world_size": 3}}))
    trainer._rank_cluster, trainer._rank_seconds = cluster.address, 3.0
    model = load_language_model(tmp_path / "model", base_dir=Path())
    trainer.connect(model, InProcessEngine(model))
    try:
        with pytest.raises(RankError, match=r"the 3 processes .*each with .*within 3 s .*Free"):
            trainer.engine.generate([SampleRequest((5, 6), 2, 0)])
        groups = ray.util.placement_group_table().values()
        assert {group["state"] for group in groups} == {"REMOVED"}
    finally:
        ray.shutdown()
