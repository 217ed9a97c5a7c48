"""A study's file is expanded to the commands that a user would type."""

from __future__ import annotations

import shlex

import pytest
import yaml

from flows.studies.choices import Lock
from flows.studies.commands import STORE_VARIABLE, StudyCommands
from flows.studies.steps import Part
from flows.sweeps.members import read_sweep_file
from flows.sweeps.points import read_grid
from ratchet.errors import ParameterError
from ratchet.experiment_files.loading import parse_overrides
from ratchet.experiment_files.study_file import load_study

EXPERIMENT = {
    **{"scenario": "graph_isomorphism", "trainer": "vanilla_ppo", "dataset": "generated"},
    "rl": {"lr": 0.001},
    "arms": {
        "nip": {"interaction_protocol": "nip"},
        "slow": {"rl.lr": 0.1},
        "nip_attacked": {"rl.gamma": 0.5},
    },
}
STUDY = {
    "title": "A title",
    "experiment": "exp.yaml",
    "search": [
        {
            **{"title": "S", "page": "docs/s.md", "seeds": "0..1", "against": 0.2},
            **{"values": {"rl.lr": [0.2, 1e-5]}, "drop": ["*_attacked"]},
        }
    ],
    "run": {"seeds": [5, 6, 9]},
    "compare": {"baselines": ["main"], "references": {"known": 0.5}},
    "attacks": {"arms": ["nip"], "seeds": 0},
    "after": [
        {
            **{"name": "more", "title": "M", "page": "docs/m.md", "drop": ["slow", "nip*"]},
            "changes": {"arms.new.phases": [{"name": "a", "num_iterations": 1}]},
        }
    ],
    "page": "docs/exp.md",
}
NOTHING = Lock()


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(STORE_VARIABLE, raising=False)
    (tmp_path / "exp.yaml").write_text(yaml.safe_dump(EXPERIMENT, sort_keys=False))


def load(*settings, parallel=1, **changes):
    with open("study.yaml", "w") as file:
        yaml.safe_dump({**STUDY, **changes}, file)
    return StudyCommands.load(load_study("study.yaml"), parallel, settings)


def lines(steps):
    return [shlex.join(step.command).removeprefix("ratchet ") for step in steps]


def locked(**by_arm):
    return Lock(choices={"docs/s.md": {arm: {"rl.lr": lr} for arm, lr in by_arm.items()}})


def test_a_search_is_on_the_validation_split_and_varies_in_each_arm():
    sweep, compare = lines(load(parallel=2).searches(NOTHING))
    assert sweep == (
        "sweep exp.yaml --name study_search --parallel 2 seed=0..1 rl.lr=0.2,1.0e-05"
        " validation.replaces_test=true '~arms.slow.rl.lr' '~arms.nip_attacked'"
    )
    assert compare.startswith(
        "compare study_search --by-arm --pair 'main · lr=1e-05 vs main · lr=0.2'"
    )
    assert "'slow · lr=1e-05 vs slow · lr=0.2' --update-page docs/s.md --title S" in compare


def test_the_study_itself():
    assert lines(load().runs(NOTHING)) == [
        "sweep exp.yaml --name study --parallel 1 seed=5,6,9",
        "exploit study --agent verifier --arm nip --seeds 0 --parallel 1",
        "compare study --by-arm --baseline main --reference known=0.5 --update-page docs/exp.md"
        " --title 'A title'",
        "sweep exp.yaml --name more --parallel 1 seed=5,6,9 preregistered=null"
        " 'arms.new.phases=[{name: a, num_iterations: 1}]' '~arms.nip' '~arms.slow'"
        " '~arms.nip_attacked'",
        "compare more --by-arm --update-page docs/m.md --title M",
    ]


def test_parts_are_selected():
    commands = load()
    assert [step.part for step in commands.searches(NOTHING)] == [Part.SEARCH] * 2
    assert commands.searches(locked(main=0.2)) == []
    assert len(commands.searches(locked(main=0.2), Part.SEARCH)) == 2
    assert commands.searches(NOTHING, Part.RUN) == []
    for part, count in {"run": 1, "attacks": 1, "page": 1, "compare": 1, "after": 2}.items():
        steps = commands.runs(NOTHING, Part(part))
        assert [step.part.value for step in steps] == [part] * count
    (compare,) = commands.runs(NOTHING, Part.COMPARE)
    assert "--update-page" not in compare.command


@pytest.mark.parametrize(
    ("choices", "overrides"),
    [
        ({}, ""),
        ({"main": 0.001, "nip": 0.001, "slow": 0.1}, ""),  # as in the file
        ({"main": 0.2, "nip": 0.2, "slow": 0.2}, " rl.lr=0.2 arms.slow.rl.lr=0.2"),
        ({"main": 0.2, "nip": 0.3, "slow": 0.1}, " rl.lr=0.2 arms.nip.rl.lr=0.3"),
        ({"nip_attacked": 0.3}, " arms.nip_attacked.rl.lr=0.3"),
    ],
)
def test_choices_are_applied_unless_the_experiment_has_them(choices, overrides):
    sweep, *_, further, _ = lines(load().runs(locked(**choices)))
    assert sweep == f"sweep exp.yaml --name study --parallel 1 seed=5,6,9{overrides}"
    assert "arms.slow.rl.lr" not in further, "the arm is left out"


def test_what_a_study_registers_is_that_of_the_experiments_section():
    (sweep, *_) = load(register={"hypothesis": "it helps"}).runs(NOTHING)
    assert sweep.assignments[-1] == (
        "preregistered={metrics: [accuracy], baselines: [main], seeds: [5, 6, 9],"
        " hypothesis: it helps}"
    )
    registered = read_sweep_file("exp.yaml", sweep.assignments)[0].preregistered
    assert (registered.seeds, registered.hypothesis) == ([5, 6, 9], "it helps")


def test_values_are_read_as_they_are_written():
    changes = {"dataset": "a,b", "x": [1, [2]], "y": None, "z": {"a": "b: c"}, "v": 1e-7, "w": True}
    (sweep, *_) = load(run={"seeds": 5, "changes": changes}).runs(NOTHING)
    grid, single = read_grid(sweep.assignments)
    assert grid == {}
    assert parse_overrides(single) == {"seed": 5, **changes}


def test_a_part_needs_the_choices_of_earlier_ones():
    commands = load()
    commands.require_choices(locked(main=0.2), Part.RUN)
    commands.require_choices(NOTHING, None)
    with pytest.raises(ParameterError, match=r"no choice .*docs/s\.md.* study study.yaml --only s"):
        commands.require_choices(NOTHING, Part.PAGE)


def test_unknown_arms_are_named():
    with pytest.raises(ParameterError, match=r"drop: 'nap' matches no arm.*Did you mean 'nip'"):
        load(run={"seeds": 5, "drop": ["nap"]}).runs(NOTHING)
    search = {**STUDY["search"][0], "arms": ["nap"]}
    with pytest.raises(ParameterError, match=r"search.arms: got 'nap', expected some of main, nip"):
        load(search=[search]).searches(NOTHING)


def test_settings_reach_all_commands(monkeypatch):
    monkeypatch.setenv(STORE_VARIABLE, "s3://bucket/store")
    sweep, attacks, page, *_ = load("settings.runs=elsewhere").runs(NOTHING)
    assert sweep.command[-2:] == ["settings.store=s3://bucket/store", "settings.runs=elsewhere"]
    assert attacks.command[-2:] == page.command[-2:] == ["--runs-dir", "elsewhere"]
    with pytest.raises(ParameterError, match=r"got 'rl.lr=1', expected settings.NAME=value"):
        load("rl.lr=1")
