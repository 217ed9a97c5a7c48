"""Settings without effect are refused, not ignored."""

from __future__ import annotations

import pytest

from ratchet.errors import ParameterError
from ratchet.experiment_files.loading import load_experiment

TEXT = "{scenario: graph_isomorphism, trainer: vanilla_ppo, dataset: er1000}"


def test_a_budget_is_refused_where_nobody_can_spend_it(tmp_path):
    file = tmp_path / "tiny.yaml"
    file.write_text(TEXT)
    load_experiment(file)
    with pytest.raises(ParameterError, match=r"settings\.budget"):
        load_experiment(file, ["settings.budget=5"])
