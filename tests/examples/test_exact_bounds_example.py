"""Exact accuracies of decision rules: refinement with marks, and the order of the rules."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from examples import exact_bounds
from examples.exact_bounds import _most_frequent_colour, exact_accuracies
from ratchet.scenarios.graph_isomorphism.wl import wl_scores


def test_marks_start_refinement_with_distinct_colours():
    hexagon = np.roll(np.eye(6, dtype=np.uint8), 1, 0) + np.roll(np.eye(6, dtype=np.uint8), -1, 0)
    triangles = np.kron(np.eye(2, dtype=np.uint8), 1 - np.eye(3, dtype=np.uint8))
    pair = np.stack([hexagon, triangles])[None]
    marks = np.zeros((1, 2, 6), dtype=np.int64)
    assert wl_scores(pair, max_rounds=5, marks=marks).tolist() == [6]
    marks[0, :, 2] = 1
    assert wl_scores(pair, max_rounds=5, marks=marks).tolist() == [2]
    marks[0, 1, 2] = 2  # a colour of only one graph
    assert wl_scores(pair, max_rounds=5, marks=marks).tolist() == [1]


@pytest.mark.slow
def test_the_script_has_a_default_file(tmp_path, monkeypatch, capsys):
    (tmp_path / "experiments").mkdir()
    source = Path(__file__).parents[2] / "experiments" / "graph_isomorphism_help.yaml"
    content = yaml.safe_load(source.read_text())
    content["graph_isomorphism"]["num_pairs"] = 40
    (tmp_path / "experiments" / source.name).write_text(yaml.safe_dump(content))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["exact_bounds.py"])
    runpy.run_path(str(Path(exact_bounds.__file__)), run_name="__main__")
    assert "random question: " in capsys.readouterr().out


@pytest.mark.slow
def test_chosen_questions_raise_accuracy_more_than_random_ones(tmp_path):
    content = {
        "scenario": "graph_isomorphism",
        "trainer": "vanilla_ppo",
        "dataset": "generated",
        "test_size": 0.5,
        "graph_isomorphism": {"num_pairs": 400, "prop_score_1": 0.1, "prop_score_2": 0.2},
        "agents": {"verifier": {"num_gnn_layers": 2}},
    }
    (tmp_path / "file.yaml").write_text(yaml.safe_dump(content))
    exact = exact_accuracies(str(tmp_path / "file.yaml"))
    # half of the pairs differ, and two rounds distinguish 30 % of these
    assert exact.accept_if_alike == pytest.approx(0.65, abs=0.005)
    assert exact.accept_if_alike < exact.random_question < exact.two_random_questions
    assert exact.random_question < exact.middle_degree <= exact.best_question <= 1
    assert exact.random_question < exact.most_frequent_colour <= exact.best_question
    assert exact.random_question > 0.85


def test_the_largest_colour_class_of_a_path_is_its_middle():
    path = np.diag(np.ones(5, dtype=np.uint8), 1)
    path = np.pad(path + path.T, (0, 1))[None]  # six nodes and an absent one
    present = np.arange(7)[None] < 6
    one_round = _most_frequent_colour(path, present, 1)
    assert one_round.tolist() == [[False, True, True, True, True, False, False]]
    assert _most_frequent_colour(path, present, 2).tolist() == [[True] * 6 + [False]]
