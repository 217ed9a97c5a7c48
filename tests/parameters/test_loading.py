"""Experiment files: overrides, arms, interpolation, and errors with advice."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.errors import ParameterError, RatchetError
from ratchet.experiment_files.loading import load_experiment
from ratchet.parameters.trainers import TrainerReference

TEXT = """\
# ratchet run experiments/tiny.yaml
scenario: graph_isomorphism
trainer: {module_path: my_trainer.py, class_name: MyTrainer}
dataset: er1000
seed: 7
rl: {lr: 1e-3, num_iterations: 5}
ppo.clip_epsilon: 0.3
agents:
  _default: {d_gnn: 8}
  prover.update_schedule: {kind: contiguous_periodic, period: 4, start: 0, stop: 2}
settings:
  iterations_per_task: 5
  experiment_name: "seed-${seed}"
arms:
  alone:
    trainer: solo_agent
    rl.lr: 0.1
    agents: {_default: {d_gnn: 4}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "experiments" / "tiny.yaml"
    path.parent.mkdir()
    path.write_text(TEXT)
    return path


def test_a_file_is_read_whole(file: Path) -> None:
    experiment = load_experiment(file)
    assert experiment.name == "tiny"
    assert experiment.path == file.resolve()
    assert experiment.hyper_params.rl.lr == 0.001
    assert experiment.hyper_params.ppo.clip_epsilon == 0.3
    assert experiment.settings.iterations_per_task == 5
    assert experiment.settings.experiment_name == "seed-7"
    assert experiment.settings.base_dir == str(file.parent.resolve())


def test_a_trainer_in_a_file_is_named_by_its_class(file: Path) -> None:
    hyper_params = load_experiment(file).hyper_params
    assert hyper_params.trainer == TrainerReference(
        module_path="my_trainer.py", class_name="MyTrainer"
    )
    assert hyper_params.trainer_name == "MyTrainer"


def test_an_arm_is_the_main_experiment_with_changes(file: Path) -> None:
    experiment = load_experiment(file, ["rl.num_iterations=9"])
    arm = experiment.arms["alone"]
    assert arm.trainer == "solo_agent"
    assert (arm.rl.lr, arm.rl.num_iterations) == (0.1, 9)
    assert arm.agents["prover"].d_gnn == 4, "a change of _default reaches named agents"
    assert experiment.hyper_params.rl.lr == 0.001


def test_overrides_are_yaml_and_win(file: Path) -> None:
    experiment = load_experiment(
        file,
        [
            "rl.num_iterations=20",
            "agents.prover.d_gnn=64",
            "settings.iterations_per_task=7",
            "arms.alone.rl.lr=2e-1",
            "rl.frames_per_batch=null",
            "graph_isomorphism.graph_sizes=[7, 8]",
        ],
    )
    hyper_params = experiment.hyper_params
    assert hyper_params.rl.num_iterations == 20
    assert hyper_params.agents["prover"].d_gnn == 64
    assert hyper_params.agents["verifier"].d_gnn == 8
    assert experiment.settings.iterations_per_task == 7
    assert experiment.arms["alone"].rl.lr == 0.2
    assert hyper_params.rl.frames_per_batch is None
    assert hyper_params.graph_isomorphism.graph_sizes == (7, 8)


def test_a_schedule_of_another_kind_replaces_the_whole(file: Path) -> None:
    experiment = load_experiment(file, ["agents.prover.update_schedule.kind=constant"])
    assert experiment.hyper_params.agents["prover"].update_schedule.kind == "constant"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "rl.num_iter=3",
            "rl.num_iter: unknown parameter (value 3). Did you mean 'num_iterations'",
        ),
        ("rll.lr=3", "rll: unknown parameter (value {'lr': 3}). Did you mean 'rl'"),
        ("setings.a=3", "Did you mean 'settings'"),
        ("settings.iteration_per_task=3", "Did you mean 'iterations_per_task'"),
        (
            "arms.alone.rl.lrr=2",
            "arms.alone.rl.lrr: unknown parameter (value 2). Did you mean 'lr'",
        ),
        ("trainer.class_nam=a", "trainer.class_nam: unknown parameter (value 'a')."),
        ("agents.prover.d_gn=3", "agents.prover.d_gn: unknown parameter (value 3)."),
        ("agents._default.model_name=x", "unknown parameter (value 'x'). Known"),
        ("agents.prover.agent_lr_factor.actr=3", "Did you mean 'actor'"),
        ("agents.prover.update_schedule.stp=3", "update_schedule.stp: unknown parameter (value 3)"),
        ("scenario=graph_isomorphis", "Did you mean 'graph_isomorphism'"),
        ("rl.lr=fast", "rl.lr: got 'fast' (text). Input should be a valid number"),
        ("rl.gamma=2", "rl.gamma: got 2 (an integer). Input should be less than or equal to 1."),
        ("rl.clip_value=x", "rl.clip_value: got 'x' (text). Input should be a valid boolean"),
        ("rl=3", "rl: got 3 (an integer). Input should be a mapping."),
        ("arms.main.rl.lr=1", "arms.main: this name is the main experiment's"),
        ("arms.alone=1", "arms.alone: got 1, expected changes"),
        ("rl.lr", "override 'rl.lr': expected a.b=value"),
        ("rl..lr=1", "expected a.b=value"),
        ("rl.lr=[1", "override 'rl.lr=[1':1:3: bad YAML"),
    ],
)
def test_mistakes_are_told_with_path_value_and_what_was_meant(
    file: Path, override: str, expected: str
) -> None:
    with pytest.raises(RatchetError) as caught:
        load_experiment(file, [override])
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("scenario: a\nrl: [1, 2\n", "tiny.yaml:3:1: bad YAML"),
        ("seed: 1\nrl:\n  lr: 1\n  lr: 2\n", "tiny.yaml:4:3: bad YAML: duplicate key 'lr'"),
        ("- a\n- b\n", "the top level is a list, expected a mapping of parameters"),
        ("", "the file is empty, expected a mapping of parameters"),
        ("# only a comment\n", "the file is empty, expected a mapping of parameters"),
        ("hello\n", "the top level is text, expected a mapping"),
        ("42\n", "the top level is an integer, expected a mapping"),
        ("seed: ${sed}\n", "seed: Interpolation key 'sed' not found"),
        ("1: 2\n", "the key 1 is not text"),
        ("settings: 3\n", "settings: got 3, expected a mapping"),
        ("scenario: graph_isomorphism\n", "trainer: missing, but required"),
    ],
)
def test_bad_files_are_told_with_their_place(file: Path, text: str, expected: str) -> None:
    file.write_text(text)
    with pytest.raises(ParameterError) as caught:
        load_experiment(file)
    assert expected in str(caught.value)
    assert "tiny.yaml" in str(caught.value)


def test_a_missing_file_gets_the_nearest_one(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent.parent)
    with pytest.raises(ParameterError, match=r"tinny: no such file\. Did you mean experiments/tin"):
        load_experiment("tinny")
    with pytest.raises(ParameterError, match=r"no such file\. Available: experiments/tiny\.yaml"):
        load_experiment("zzzzzzz.yaml")


def test_all_mistakes_of_all_kinds_are_told_at_once(file: Path) -> None:
    file.write_text(
        TEXT.replace("rl: {lr: 1e-3,", "lr: 0.1\nrl: {lr: fast, gama: 0.9,")
        .replace("dataset: er1000", "interaction_protocol: nipp\ndataset: er1000")
        .replace("iterations_per_task: 5", "iterations_per_tsk: 5")
        .replace("rl.lr: 0.1", "rl.gamma: 2")
    )
    with pytest.raises(ParameterError) as caught:
        load_experiment(file, ["agents.prover.d_gn=3"])
    first, *lines = str(caught.value).splitlines()
    assert first == f"{file}:"
    begins = [line.partition(": ")[0] for line in lines]
    assert sorted(begins) == sorted(
        [
            "lr",
            "interaction_protocol",
            "agents.prover.d_gn",
            "rl.lr",
            "rl.gama",
            "arms.alone.rl.gamma",
            "settings.iterations_per_tsk",
        ]
    )
    (top,) = (line for line in lines if line.startswith("lr: "))
    assert "rl.lr" in top.partition("Did you mean ")[2]


WRONG_NAMES = """\
scenario: graph_isomorphism
trainer: vanilla_ppo
dataset: er1000
agents:
  _default: {update_schedule: {kind: alternating_periodic, period: 2, first_agent: veriifer}}
  provr: {d_gnn: 4}
  prover1: {d_gnn: 4}
arms: {other: {agents: {simulatr.d_gnn: 4}}}
"""


@pytest.mark.parametrize(
    ("mistake", "path"),
    [
        ("rl: {lr: -1}", "rl.lr"),
        ("rl.lrr: 1", "rl.lrr"),
        ("lr: 1", "lr"),
        ("settings: {iterations_per_tsk: 5}", "settings.iterations_per_tsk"),
        ("agents.prover.d_gn: 4", "agents.prover.d_gn"),
        ("arms.third.rl.lr: -1", "arms.third.rl.lr"),
    ],
)
def test_wrong_names_of_agents_are_told_with_all_other_mistakes(
    file: Path, mistake: str, path: str
) -> None:
    file.write_text(f"{WRONG_NAMES}{mistake}\n")
    with pytest.raises(ParameterError) as caught:
        load_experiment(file)
    told = {_path(line): line for line in str(caught.value).splitlines()[1:]}
    expected = {"agents.provr", "agents._default.update_schedule", "arms.other.agents.simulatr"}
    assert told.keys() == {path, *expected}
    assert "Did you mean 'prover'" in told["agents.provr"]
    assert "'veriifer': no protocol has such an agent" in told["agents._default.update_schedule"]
    assert "Did you mean 'simulator'" in told["arms.other.agents.simulatr"]


def test_a_wrong_name_that_the_protocol_tells_is_told_once(file: Path) -> None:
    names = "agents: {provr: {}}\nprotocol_common.zero_knowledge: true\nsettings: {a: 1}\n"
    file.write_text(TEXT.split("rl:")[0] + names)
    with pytest.raises(ParameterError) as caught:
        load_experiment(file)
    lines = str(caught.value).splitlines()[1:]
    assert [_path(line) for line in lines] == ["agents.provr", "settings.a"]
    assert "expected one of ['prover', 'verifier']" in lines[0]


@pytest.mark.parametrize(
    "lines",
    [
        "scenario: gymnasium",  # whose environment defines its agents
        "scenario: graph_isomorphism\ninteraction_protocol: my_protocol.py:MyProtocol",
        "scenario: graph_isomorphis",  # its agents are unknown
    ],
)
def test_names_of_agents_are_left_alone_where_they_may_be_others(file: Path, lines: str) -> None:
    file.write_text(f"{lines}\ntrainer: vanilla_ppo\ndataset: d\nagents: {{critic: {{}}}}\na: 1\n")
    with pytest.raises(ParameterError) as caught:
        load_experiment(file)
    assert "critic" not in str(caught.value)


def _path(line: str) -> str:
    return line.partition(": ")[0]


def test_a_missing_file_gets_all_that_are_called_alike(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("tiny_text", "tiny_images", "other"):
        file.with_name(f"{name}.yaml").write_text(TEXT)
    monkeypatch.chdir(file.parent.parent)
    with pytest.raises(ParameterError) as caught:
        load_experiment("experiments/tiny_tex.yaml")
    assert "Did you mean experiments/tiny_text.yaml" in str(caught.value)
    with pytest.raises(ParameterError) as caught:
        load_experiment("tin")
    for name in ("tiny", "tiny_text", "tiny_images"):
        assert f"experiments/{name}.yaml" in str(caught.value)
    assert "other" not in str(caught.value)


@pytest.mark.parametrize(("text", "value"), [("1e-3", 0.001), ("on", "on"), ("true", True)])
def test_yaml_scalars_are_what_they_look_like(file: Path, text: str, value: object) -> None:
    from ratchet.experiment_files.loading import parse_overrides

    assert parse_overrides([f"a={text}"]) == {"a": value}


def test_the_comment_at_the_start_describes_the_experiment(tmp_path):
    text = "scenario: graph_isomorphism\ntrainer: vanilla_ppo\ndataset: generated\n"
    path = tmp_path / "a.yaml"
    path.write_text("# What it is.\n#\n#   ratchet run a.yaml\n#More.\n" + text + "# not this\n")
    assert (
        load_experiment(path).settings.description == "What it is.\n\n  ratchet run a.yaml\nMore."
    )
    named = load_experiment(path, ["settings.description=other"])
    assert named.settings.description == "other"
    path.write_text(text)
    assert load_experiment(path).settings.description is None
