"""A sweep shows the progress of members that run in other processes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from flows import run_sweep, sweep_flow
from flows.process.environment import prepare_environment
from flows.sweep_flow import MemberProgress
from ratchet.parameters.settings import ExperimentSettings
from trainers.progress import progress_reporter


class Descriptions:
    """Collects the descriptions that a progress reporter receives."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def describe(self, description: str) -> None:
        self.lines.append(description)

    def ignore(self, *_: object) -> None:
        """Ignore all other progress."""

    start = advance = show = finish = ignore


def member(path, seed):
    return SimpleNamespace(
        run_id=f"run-{seed}",
        label=f"seed={seed}",
        experiment=SimpleNamespace(run_path=path / f"run-{seed}"),
    )


def test_members_without_a_folder_here_show_the_state_in_prefect(tmp_path):
    progress = MemberProgress(lambda names: {names[0]: "Late"})
    members = [member(tmp_path, seed) for seed in range(5)]
    for each in progress.started(members):
        assert f"{each.label}: " in progress.describe() or each in members[3:]
    assert progress.describe() == (
        "Sweep · seed=0: late in Prefect; seed=1: waiting; seed=2: waiting; 2 more"
    )
    for each in members[:4]:
        progress.ended(each)
    assert progress.describe() == "Sweep · seed=4: late in Prefect"


@pytest.mark.slow
def test_a_sweep_shows_the_stages_of_running_members(lab, monkeypatch):
    monkeypatch.setenv("TINY_LOG", str(lab.log))
    monkeypatch.setenv("TINY_SECONDS", "1")
    monkeypatch.setattr(sweep_flow, "_INTERVAL_SECONDS", 0.3)
    prepare_environment(lab.folder / "home")
    chosen = ExperimentSettings.from_dict(lab.settings(runner="processes", max_parallel=2))
    reporter = Descriptions()
    with progress_reporter(reporter):
        run_sweep(lab.hyper_params(pretrain_agents=False), {"seed": [0, 1]}, chosen, name="tiny")
    for seed in (0, 1):
        counts = {
            line.split(f"seed={seed}: ")[1].split(";")[0]
            for line in reporter.lines
            if f"seed={seed}: " in line
        }
        done = {count.rsplit(", ")[-1] for count in counts if count.endswith(" stages done")}
        assert len(done) > 1, counts
