"""Invalid or exponentially growing YAML raises errors with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.errors import ParameterError, RatchetError
from ratchet.experiment_files.loading import load_experiment
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.reading.yaml_files import parse_yaml, read_mapping

TINY = "scenario: graph_isomorphism\ntrainer: vanilla_ppo\ndataset: generated\n"


def bomb(*, of: str, levels: int = 40) -> str:
    """Return a file in which every line refers to the previous line twice."""
    lines = {
        "aliases": "a{0}: &a{0} [*a{1}, *a{1}]",
        "merges": "a{0}: &a{0} {{<<: [*a{1}, *a{1}], k{0}: [*a{1}, *a{1}]}}",
    }
    first = {"aliases": "a0: &a0 [x]", "merges": "a0: &a0 {x: 1}"}[of]
    return "\n".join([first, *(lines[of].format(n, n - 1) for n in range(1, levels))])


REFUSED = {
    "not UTF-8": (b"seed: 1\n# caf\xe9\n", r":2: not UTF-8: got byte 0xe9 at position 13"),
    "NUL": (b"seed: 1\nx: \0\n", r":2: .*U\+0000"),
    "quoted NUL": (b'seed: "a\\0b"', r":1:7: .*NUL"),
    "surrogate": (b'seed: "\\ud800"', r":1:7: .*surrogates"),
    "date": (b"seed: 2020-13-99", r":1:7: .*'2020-13-99': month must be"),
    "empty integer": (b"seed: !!int ''", r":1:7: .*invalid int"),
    "long integer": (b"seed: 0x" + b"f" * 5000, r":1:7: .*at most 1024 bits"),
    "boolean": (b"seed: !!bool perhaps", r":1:7: .*invalid bool"),
    "list as key": (b"? [1, 2]\n: 3", r":1:3: .*the key \[1, 2\] is a list"),
    "mapping as key": (b"{{a: 1}: 2}", r":1:2: .*the key \{'a': 1\} is a mapping"),
    "recursive alias": (b"a: &a {b: *a}", r":1:11: .*an alias contains itself"),
    "deep lists": (b"a: " + b"[" * 1200, r":1:\d+: .*nested deeper than 100 levels"),
    "deep aliases": (
        b"\n".join([b"a0: &a0 1", *(b"a%d: &a%d [*a%d]" % (n, n, n - 1) for n in range(1, 200))]),
        r"nested deeper than 100 levels",
    ),
    "aliases": (bomb(of="aliases").encode(), r"values, aliases expanded, expected at most 100,000"),
    "merges": (bomb(of="merges").encode(), r"values, aliases expanded, expected at most 100,000"),
    "circle": (b'a: "${b}"\nb: "${a}"', "Recursive interpolation"),
}


@pytest.mark.parametrize(("content", "message"), REFUSED.values(), ids=REFUSED)
def test_files_that_cannot_be_read_are_refused(
    tmp_path: Path, content: bytes, message: str
) -> None:
    file = tmp_path / "bad.yaml"
    file.write_bytes(content)
    with pytest.raises(ParameterError, match=message) as caught:
        read_mapping(file)
    assert str(caught.value).startswith(str(file))
    assert len(str(caught.value)) < 1000


def test_aliases_and_references_within_the_bounds_are_read(tmp_path: Path) -> None:
    file = tmp_path / "good.yaml"
    file.write_text(
        'a: &a {b: [1, 2]}\nc: {<<: *a, d: *a}\ne: "${c.d.b}"\nf: "${e.1}-${.a.b[0]}"\n'
    )
    found = read_mapping(file)
    assert found["c"] == {"b": [1, 2], "d": {"b": [1, 2]}}
    assert (found["e"], found["f"]) == ([1, 2], "2-1")


@pytest.mark.parametrize("override", ["seed=2020-13-99", "seed=&a [*a]", "seed=" + "[" * 1200])
def test_overrides_are_read_within_the_same_bounds(tmp_path: Path, override: str) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(TINY)
    with pytest.raises(ParameterError, match="override 'seed="):
        load_experiment(file, [override])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("settings.base_dir=[1]", r"settings.base_dir: got \[1\], expected a folder"),
        ("settings.runs=7", "settings.runs: got 7, expected a folder"),
        ("settings.run_id=../../x", "settings.run_id: got '../../x'"),
        ("settings.home=" + "x" * 300, "settings.home: .*at most 255 bytes"),
        ("seed=" + "x" * 12_000, r"… \(12,002 characters\)"),
        ("scenario=" + "x" * 12_000, r"… \(12,002 characters\)"),
        ("torchrl=7", "torchrl: got 7"),
        ("rl.num_iterations=1000000000", "rl.num_iterations: .*less than or equal to 100000"),
        ("phases=[{name: a, num_iterations: 1000000000}]", "phases: .*at most 10,000,000"),
    ],
)
def test_values_that_no_parameter_takes_are_refused_briefly(
    tmp_path: Path, override: str, message: str
) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(TINY)
    with pytest.raises(RatchetError, match=message) as caught:
        load_experiment(file, [override])
    assert len(str(caught.value)) < 1500


def test_a_message_of_many_lines_says_how_many_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(TINY + "".join(f"unknown{number}: 1\n" for number in range(200)))
    with pytest.raises(ParameterError, match=r"… and \d+ more lines") as caught:
        load_experiment(file)
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("entry", ["{}", "[a]", "7", "''", '"  "'])
def test_entries_of_defaults_that_name_nothing_are_refused(tmp_path: Path, entry: str) -> None:
    file = tmp_path / "file.yaml"
    file.write_text(f"defaults: [{entry}]\n")
    with pytest.raises(ParameterError, match=r"defaults: got .* expected the name of a file"):
        read_mapping(file)


def test_the_bound_on_iterations_includes_itself() -> None:
    HyperParameters.from_dict(
        {
            **{"scenario": "graph_isomorphism", "trainer": "vanilla_ppo", "dataset": "generated"},
            "rl": {"num_iterations": 100_000},
        }
    )


@pytest.mark.parametrize("text", ["010", "1:30", "-017", "0_7", "00", "+1:00:59"])
def test_integers_of_other_bases_are_refused(text):
    """YAML 1.1 reads 010 as 8 and 1:30 as 90, YAML 1.2 reads other values."""
    with pytest.raises(ParameterError, match=r"a\.yaml:1:7: bad YAML: invalid int .*decimal"):
        parse_yaml(f"seed: {text}", "a.yaml")
    assert parse_yaml(f"seed: '{text}'", "a.yaml") == {"seed": text}


def test_decimal_and_hexadecimal_integers_are_read():
    text = "[0, 7, -10, 1_000, 0x1f, 0b11]"
    assert parse_yaml(text, "a.yaml") == [0, 7, -10, 1000, 31, 3]
