"""Messages of requests that are refused name what was sent."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from ratchet.errors import DataError
from ratchet.service.api.errors import from_validation
from ratchet.service.api.schemas.fine_tuning import SupervisedHyperParameters
from ratchet.service.api.tinker.requests import Datum


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, "greater than or equal to 1"), (2.5, "valid integer"), ("many", "'auto'")],
)
def test_a_number_out_of_range_is_not_called_a_wrong_word(value, expected):
    sent = {"n_epochs": value}
    with pytest.raises(ValidationError) as caught:
        SupervisedHyperParameters.model_validate(sent)
    error = from_validation(caught.value.errors(), sent=sent)
    assert "'n_epochs'" in str(error)
    assert expected in str(error)


def test_vectors_of_an_example_have_a_value_for_each_token():
    def tensor(values):
        return {"data": values, "dtype": "float32", "shape": [len(values)]}

    datum = Datum.model_validate(
        {
            "model_input": {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]},
            "loss_fn_inputs": {
                "target_tokens": {"data": [2, 3, 4], "dtype": "int64", "shape": [3]},
                "weights": tensor([1.0, 1.0]),
            },
        }
    )
    with pytest.raises(DataError, match="weights: got 2 values, expected 3, one for each token"):
        datum.to_example()
