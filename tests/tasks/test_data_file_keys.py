"""Keys of data from files depend on the content and not on the path."""

from __future__ import annotations

import pytest

from ratchet.parameters import HyperParameters
from tasks.text.keys import TextArmKeys


@pytest.fixture
def key_of(tmp_path):
    def make(folder, text):
        path = tmp_path / folder / "data.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        hyper_params = HyperParameters(
            scenario="code_validation", trainer="pure_text_ei", dataset=f"jsonl:{path}"
        )
        return TextArmKeys("arm", hyper_params).build_scenario().key

    return make


def test_equal_files_with_different_paths_have_the_same_key(key_of):
    assert key_of("here", "{}") == key_of("there", "{}")


def test_an_edited_file_has_a_different_key(key_of):
    assert key_of("here", "{}") != key_of("here", "[]")
