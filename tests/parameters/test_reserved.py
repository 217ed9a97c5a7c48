"""What nothing reads yet is refused, not ignored."""

from __future__ import annotations

import pytest

from ratchet.errors import ParameterError
from ratchet.parameters.loading import load_experiment

TEXT = "{scenario: graph_isomorphism, trainer: vanilla_ppo, dataset: er1000}"


@pytest.mark.parametrize(
    "override",
    [
        "message_regression.enabled=true",
        "settings.budget=5",
        "settings.profiler=true",
    ],
)
def test_a_reserved_parameter_is_an_error_with_its_path(tmp_path, override):
    file = tmp_path / "tiny.yaml"
    file.write_text(TEXT)
    load_experiment(file)
    with pytest.raises(ParameterError, match=override.partition("=")[0].replace(".", r"\.")):
        load_experiment(file, [override])
