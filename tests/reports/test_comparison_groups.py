"""Runs are grouped by the parameters in which they differ, and labelled with these."""

from __future__ import annotations

from made_runs import hyper_params, labels, make_run, table

from ratchet.reports.comparison.comparing import compare_runs
from ratchet.reports.comparison.options import Options
from ratchet.tracking.manifest import RunManifest
from ratchet.tracking.run_folder import RunFolder

QUICK = Options(num_resamples=300)


def test_unread_sections_do_not_separate_groups(tmp_path):
    runs = [
        make_run(tmp_path, "a", 5, interaction_protocol="nip", debate_protocol__sequential=True),
        make_run(tmp_path, "b", 6, interaction_protocol="nip", seed=1),
        make_run(tmp_path, "c", 7, interaction_protocol="mnip"),
    ]
    comparison = compare_runs(runs, options=QUICK)
    assert labels(comparison) == ["nip", "mnip"]
    assert [len(group.runs) for group in comparison.grouping.groups] == [2, 1]


def test_labels_contain_all_differences(tmp_path):
    runs = [
        make_run(tmp_path, f"{lr}-{gamma}", 5, rl__lr=lr, rl__gamma=gamma)
        for lr, gamma in ((0.1, 0.5), (0.2, 0.5), (0.2, 0.9))
    ]
    assert labels(compare_runs(runs, options=QUICK)) == [
        "gamma=0.5 · lr=0.1",
        "gamma=0.5 · lr=0.2",
        "gamma=0.9 · lr=0.2",
    ]


def test_a_value_of_all_agents_is_in_a_label_once(tmp_path):
    def run(name, factor, **verifier):
        default = {"agent_lr_factor": {"actor": factor, "critic": factor}}
        agents = {"_default": default, "verifier": {"num_gnn_layers": 2, **verifier}}
        return make_run(tmp_path, name, 5, agents=agents)

    runs = [run("a", 0.3), run("b", 1.0)]
    assert labels(compare_runs(runs, options=QUICK)) == [
        "actor=0.3 · critic=0.3",
        "actor=1 · critic=1",
    ]
    own = run("c", 1.0, agent_lr_factor={"actor": 0.3, "critic": 1.0})
    assert labels(compare_runs([*runs[1:], own], options=QUICK)) == ["actor=1", "actor=0.3"]


def test_a_trainer_by_name_differs_from_one_by_its_file_and_class(tmp_path):
    custom = {"module_path": "mine.py", "class_name": "Mine"}
    runs = [make_run(tmp_path, "a", 5), make_run(tmp_path, "b", 7, seed=1, trainer=custom)]
    expected = ["vanilla_ppo", "trainer={module_path: mine.py, class_name: Mine}"]
    assert labels(compare_runs(runs, options=QUICK)) == expected


def test_values_that_are_no_names_are_labelled_with_their_parameter(tmp_path):
    path = "graph_isomorphism.dataset_seed"
    for parameter, values, expected in (
        ("pretrain_agents", (False, True), ["pretrain_agents=no", "pretrain_agents=yes"]),
        (path, (3, 4), ["dataset_seed=3", "dataset_seed=4"]),
    ):
        runs = [
            make_run(tmp_path / parameter, f"r{k}", 5, **{parameter.replace(".", "__"): value})
            for k, value in enumerate(values)
        ]
        assert labels(compare_runs(runs, options=QUICK, different_data=True)) == expected


def test_arms_of_a_run_are_compared_too(tmp_path):
    arms = {"main": hyper_params(), "alone": hyper_params(interaction_protocol="solo_verifier")}
    plain = {name: params.to_dict() for name, params in arms.items()}
    manifest = RunManifest(run_id="two", name="two", status="completed", arms=plain)
    folder = RunFolder.create(tmp_path, manifest)
    folder.write_table(table("test", 7))
    own = table("test", 5)
    folder.write_table(type(own)(own.name, own.columns, "alone"))
    comparison = compare_runs([folder], options=QUICK)
    assert labels(comparison) == ["nip", "solo_verifier"]
    assert [run.label for run in comparison.runs] == ["two", "two · alone"]


def test_arms_are_grouped_by_the_parameters_in_which_the_runs_of_an_arm_differ(tmp_path):
    def run(seed, **alone):
        arms = {"main": hyper_params(seed=seed), "alone": hyper_params(seed=seed, **alone)}
        plain = {name: params.to_dict() for name, params in arms.items()}
        manifest = RunManifest(run_id=f"r{seed}", name="two", status="completed", arms=plain)
        folder = RunFolder.create(tmp_path, manifest)
        for arm, right in (("main", 7), ("alone", 5)):
            own = table("test", right)
            folder.write_table(type(own)(own.name, own.columns, arm))
        return folder

    changes = {"interaction_protocol": "solo_verifier", "rl__lr": 0.5}
    folders = [run(0, **changes), run(1, **changes)]
    comparison = compare_runs(folders, by_arm=True, options=QUICK)
    assert labels(comparison) == ["main", "alone"]
    assert list(comparison.grouping.paths) == ["arm"]
    assert [group.seeds for group in comparison.grouping.groups] == [[0, 1], [0, 1]]
    searched = compare_runs([*folders, run(2, **{**changes, "rl__lr": 0.1})], by_arm=True)
    assert labels(searched) == ["main · lr=0.003", "alone · lr=0.5", "alone · lr=0.1"]
    assert searched.grouping.groups[1].values == {"arm": "alone", "rl.lr": 0.5}
