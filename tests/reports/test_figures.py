"""Figures in documents are compared with their formulas, in the form in which they are written."""

from __future__ import annotations

import pytest

from ratchet.errors import DataError, ParameterError
from ratchet.reports.claims import find_cell
from ratchet.reports.figures import check_document, check_figures
from tests.reports.test_claims import PUBLISHED

TABLES = """Differences, in percent

| pair | difference of means | 95 % interval | corrected p |
| --- | ---: | ---: | ---: |
| adp − main | +1.5 | [−0.3, +3.2] | < 0.001 |

## Learning: accuracy
| arm | last |
| --- | ---: |
| **adp** | 7 |
| main | 8 |
""".splitlines()
VALUES = {"half": 0.5, "many": 12345.6, "loss": -0.071, "seeds": {0: 0.583, 1: 0.697, 2: 0.6}}


def computed(text):
    figures = check_figures(text, lambda page, formula: VALUES[formula])
    return [figure.computed for figure in figures]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("50 %<!-- = half -->", "50"),
        ("50.0 %<!-- = half --> and more", "50.0"),
        ("0.50<!-- = half -->", "0.50"),
        ("12,346<!-- = many -->", "12,346"),
        ("12346<!-- = many -->", "12346"),
        ("−7.1 points<!-- = loss -->", "−7.1"),
        ("+50 points<!-- = half -->", "+50"),
        ("58.3 to 69.7\n%<!-- = seeds -->", "58.3 to 69.7"),
        ("58 to 70 %<!-- = seeds -->", "58 to 70"),
        ("no 5 % of 50 %<!-- = half -->", "50"),
        ("58.3 %<!-- = seeds -->", "2 numbers"),
        ("1 to 2 %<!-- = half -->", "1 number"),
    ],
)
def test_a_value_is_written_like_its_figure(text, expected):
    assert computed(text) == [expected]


def test_a_wrong_figure_is_named_with_its_line():
    (figure,) = check_figures("One\n\n49 %<!-- = half -->", lambda page, formula: 0.5)
    assert not figure.is_right
    assert str(figure) == "line 3: got 49, expected 50 = half"


@pytest.mark.parametrize(
    "text", ["x<!-- = half -->", "\n5 is <!-- = half -->", "7 <!-- = half -->"]
)
def test_a_formula_without_a_figure_is_refused(text):
    with pytest.raises(ParameterError, match="follow no figure"):
        check_figures(f"50 %<!-- = half -->{text}", lambda page, formula: 0.5)


def test_cells_are_found_by_row_column_and_heading():
    assert find_cell(TABLES, "adp − main", "corrected p") == "< 0.001"
    assert find_cell(TABLES, "adp", "last", "learning") == "7"
    for row, column, heading in [("main", "corrected p", ""), ("main", "last", "Other")]:
        with pytest.raises(ParameterError, match="no table"):
            find_cell(TABLES, row, column, heading)


def test_documents_read_the_data_of_their_own_and_of_other_pages(tmp_path):
    data = PUBLISHED.model_copy(update={"tables": TABLES})
    (tmp_path / "page.json").write_text(data.model_dump_json())
    page, other = tmp_path / "page.md", tmp_path / "other.md"
    page.write_text(
        "70 %<!-- = mean(main) -->,"
        " −0.3 to 3.2 points<!-- = cell('adp − main', '95 % interval') -->"
        ", p < 0.001<!-- = cell('adp − main', 'corrected p') -->"
    )
    assert [figure.is_right for figure in check_document(page, tmp_path)] == [True] * 3
    other.write_text("80 %<!-- = page: mean(adp) -->")
    assert all(figure.is_right for figure in check_document(other, tmp_path))
    other.write_text("80 %<!-- = mean(adp) -->")
    with pytest.raises(DataError, match=r"other\.json"):
        check_document(other, tmp_path)
    page.write_text("1<!-- = mean(none) -->")
    with pytest.raises(ParameterError, match=r"line 1: formula 'mean\(none\)': unknown arm 'none'"):
        check_document(page, tmp_path)
