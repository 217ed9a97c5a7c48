"""Frames and labels that a run counts, and those planned, are those that it collects."""

from __future__ import annotations

from collections import Counter

from flows import run_experiment
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.settings import ExperimentSettings
from ratchet.reports.comparison.runs import read_compared_runs
from ratchet.reports.comparison.training_costs import Used, used_by_stage
from ratchet.tracking.run_folder import RunFolder
from tests.planned_frames import planned_frames
from trainers.tensordict.collectors import RolloutCollector


def test_recorded_and_planned_frames_are_those_that_a_run_collects(lab, monkeypatch):
    """A real run whose collector is counted."""

    small = {"num_gnn_layers": 1, "num_transformer_layers": 1, "d_gin_mlp": 8}
    given = lab.hyper_params(
        trainer="vanilla_ppo",
        pretrain_agents=True,
        solo_agent={"num_epochs": 3},
        agents={"_default": small},
        nip_protocol={"max_message_rounds": 3, "min_message_rounds": 3},
        rl={"frames_per_batch": 96},
        imitation={"agents": ["prover"], "num_iterations": 4, "minibatch_size": 16},
        phases=[{"name": "a", "num_iterations": 1}, {"name": "b", "num_iterations": 2}],
    )
    collected: Counter[str] = Counter()
    collect = RolloutCollector.collect

    def counted(self, iteration):
        frames = collect(self, iteration)
        collected[self.stage] += frames.numel()
        return frames

    monkeypatch.setattr(RolloutCollector, "collect", counted)
    settings = ExperimentSettings.from_dict(lab.settings())
    result = run_experiment(given, settings, name="tiny")
    ((run,), _) = read_compared_runs([RunFolder(result.folder)])
    used = used_by_stage(run)
    names = {"imitate-prover": "imitate", "normalization": "normalization", "train": "train"}
    expected = {stage: collected.pop(name) for stage, name in names.items()}
    assert not collected
    assert {stage: each.frames for stage, each in used.items() if each.frames} == expected
    assert planned_frames(HyperParameters.from_dict(given)) == expected
    episodes = [p.values["num_episodes"] for p in run.points if p.stage == "train"]
    assert used["train"].labels == sum(episodes)
    size = next(p.values["num_datapoints/train"] for p in run.points if p.stage == "build_scenario")
    assert used["pretrain-verifier"] == Used(labels=3 * size)
