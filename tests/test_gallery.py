"""Each experiment file has an entry of the gallery, and each entry its file, figure and text."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs" / "hooks"))
import gallery  # noqa: E402 -- a hook of the site, not a package

EXPERIMENTS = {file.stem: file for file in (ROOT / "experiments").glob("*.yaml")}
ENTRIES = {name: entry for group in gallery.entries().values() for name, entry in group.items()}


def test_the_gallery_has_each_experiment_once():
    assert sorted(name for group in gallery.entries().values() for name in group) == sorted(
        EXPERIMENTS
    )


@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_the_comment_of_an_experiment_has_a_sentence_and_a_command(name):
    about = gallery.header(EXPERIMENTS[name])
    assert about.sentence.endswith((".", "?", " as"))
    kinds = ("ratchet run experiments/", "ratchet sweep ", "ratchet study ")
    assert about.command.startswith(kinds)


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_an_entry_has_a_result_a_cost_and_an_existing_picture(name):
    entry = ENTRIES[name]
    assert entry["result"]
    assert entry["cost"]
    assert not ({"curve", "picture"} <= entry.keys())
    if "picture" in entry:
        assert (ROOT / "docs" / entry["picture"]).is_file()
        assert entry["alt"]


def test_a_file_without_a_command_is_refused(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text("# Only a sentence.\nscenario: x\n")
    with pytest.raises(ValueError, match=r"x\.yaml: got .* expected a sentence and then a command"):
        gallery.header(file)


def test_curves_have_their_titles_names_and_values():
    lines = {"a": [1.0, 3.0, 2.0], "b": [2.0, 2.0]}
    text = gallery.curve("step", "accuracy", 2, lines)
    svg = ElementTree.fromstring(text)
    assert {"step", "accuracy", "a", "b"} <= {element.text for element in svg.iter()}
    paths = [e.attrib["d"].split() for e in svg.iter() if "clip-path" in e.attrib]
    points = [list(zip(path[1::3], path[2::3], strict=True)) for path in paths]
    assert [len(line) for line in points] == [3, 2]
    (first, highest, last) = (float(y) for _, y in points[0])
    assert highest < last < first, "the highest value is at the top"
    assert text == gallery.curve("step", "accuracy", 2, lines), "equal values, equal files"
