"""The section ``preregistered`` of an experiment file, and its errors."""

from __future__ import annotations

import pytest

from flows.sweeps.points import read_grid
from ratchet.errors import ParameterError
from ratchet.experiment_files.loading import load_experiment, read_preregistration
from ratchet.parameters.sweeps import read_sweep_spec

TEXT = "scenario: graph_isomorphism\ntrainer: vanilla_ppo\ndataset: generated\n"


def test_a_file_has_a_section_that_is_no_parameter(tmp_path):
    file = tmp_path / "exp.yaml"
    file.write_text(TEXT)
    plain = load_experiment(file)
    assert plain.preregistered is None
    file.write_text(f"{TEXT}preregistered: {{seeds: 3..5, baselines: [main]}}\n")
    found = load_experiment(file, ["preregistered.hypothesis=More is better"])
    assert found.hyper_params == plain.hyper_params
    assert found.preregistered.seeds == [3, 4, 5]
    assert found.preregistered.metrics == ["accuracy"]
    assert found.preregistered.baselines == ["main"]
    assert found.preregistered.hypothesis == "More is better"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, r"^preregistered.seeds: missing"),
        ({"seeds": 3}, r"^preregistered.seeds: got 3 .*valid list"),
        ({"seeds": []}, "seeds: got no values"),
        ({"seeds": [1, 1]}, "seeds: duplicate value 1"),
        ({"seeds": "5..3"}, "the range 5..3 ends before its start"),
        ({"seeds": [1, "a"]}, r"seeds.1: got 'a'.*integer"),
        ({"seeds": [-1]}, r"seeds.0: got -1 .*greater than or equal to 0"),
        ({"seeds": [1], "baseline": ["x"]}, r"preregistered.baseline: unknown.*'baselines'"),
        ({"seeds": [1], "metrics": ["acuracy"]}, r"got 'acuracy'.*expected 'accuracy' or STAGE"),
        ({"seeds": [1], "metrics": []}, "metrics: got "),
        ({"seeds": [1], "pairs": ["a vs a"]}, r"pairs.0: got 'a vs a'.*FIRST vs SECOND"),
        ({"seeds": [1], "pairs": ["a vs b"], "baselines": ["a"]}, "baselines or pairs, got both"),
    ],
)
def test_errors_contain_the_value_and_the_expectation(given, message):
    with pytest.raises(ParameterError, match=message):
        read_preregistration(given)


def test_the_section_must_be_a_mapping_and_cannot_vary_in_a_sweep(tmp_path):
    file = tmp_path / "exp.yaml"
    file.write_text(f"{TEXT}preregistered: [1]\n")
    with pytest.raises(ParameterError, match=r"preregistered: got \[1\], expected a mapping"):
        load_experiment(file)
    with pytest.raises(ParameterError, match="not a setting"):
        read_sweep_spec({"kind": "grid", "parameters": {"preregistered.seeds": [[0], [1]]}})
    assert read_grid(["preregistered.seeds=0..2"]) == ({}, ["preregistered.seeds=0..2"])


def test_the_digest_depends_on_content_and_runs_but_not_on_their_order():
    one, two = (read_preregistration({"seeds": seeds}) for seeds in ("0..1", [1, 0]))
    assert one.digest(["a", "b"]) == two.digest(["b", "a"])
    assert len(one.digest(["a"])) == 16
    assert one.digest(["a", "b"]) != one.digest(["a", "c"])
    other = read_preregistration({"seeds": [0, 1], "metrics": ["test/x"]})
    assert other.digest(["a", "b"]) != one.digest(["a", "b"])
