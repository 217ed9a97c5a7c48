"""Configuration of callbacks by name, by file and by section; and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet import HyperParameters
from ratchet.errors import ParameterError, UnknownNameError
from trainers.callbacks.early_stopping import EarlyStopping
from trainers.callbacks.registry import callback_specs
from trainers.compatibility import check_combination

EXAMPLES = Path(__file__).parents[3] / "examples"
STOP = {"name": "early_stopping", "metric": "grad_norm"}


def test_by_name_by_file_and_by_a_section_in_this_order(tiny):
    custom = {"name": "custom_callback.py:RoundsUsed", "enough": 0.25}
    hyper_params = tiny.parameters(
        message_regression__enabled=True,
        message_regression__method="cnn",
        callbacks=[STOP, "gradient_statistics", custom, {**STOP, "patience": 3}],
    )
    specs = callback_specs(hyper_params, EXAMPLES)
    labels = ["message_regression", "early_stopping", "gradient_statistics", "RoundsUsed"]
    assert [spec.label for spec in specs] == [*labels, "early_stopping#2"]
    assert specs[0].parameters.method == "cnn"
    assert specs[1].kind is EarlyStopping
    assert specs[3].parameters.to_dict() == {"enough": 0.25, "times": 2}
    assert specs[4].parameters.patience == 3
    check_combination(hyper_params, EXAMPLES)
    assert HyperParameters.from_dict(hyper_params.to_dict()) == hyper_params
    assert hyper_params.to_dict()["callbacks"][1] == {"name": "gradient_statistics"}


def test_the_section_and_the_list_ask_for_the_same(tiny):
    section = tiny.parameters(message_regression__enabled=True, message_regression__num_epochs=3)
    listed = tiny.parameters(callbacks=[{"name": "message_regression", "num_epochs": 3}])
    one, other = (
        callback_specs(each)[0].key_parameters(each, "train", last=False)
        for each in (section, listed)
    )
    assert one == other


@pytest.mark.parametrize(
    ("callbacks", "error", "message"),
    [
        ([{"patience": 1}], ParameterError, r"callbacks\.0\.name: missing"),
        (["early_stoping"], UnknownNameError, r"'early_stoping'.*mean 'early_stopping'"),
        (["gone.py:Gone"], ParameterError, r"there is no file .*gone\.py"),
        ([STOP, "early_stopping"], ParameterError, r"callbacks\.1\.metric: missing"),
        ([{**STOP, "patience": 0}], ParameterError, r"callbacks\.0\.patience: got 0"),
        ([{**STOP, "patence": 2}], ParameterError, r"callbacks\.0\.patence: .*mean 'patience'"),
        (["custom_callback.py:RoundsUsedParameters"], ParameterError, r"subclass of .*Callback"),
    ],
)
def test_wrong_ones_are_refused_with_their_path(tiny, callbacks, error, message):
    with pytest.raises(error, match=message):
        check_combination(tiny.parameters(callbacks=callbacks), EXAMPLES)


def test_trainers_that_call_none_refuse_them(tiny):
    reference = {"module_path": "custom_trainer.py", "class_name": "HillClimbingTrainer"}
    with pytest.raises(ParameterError, match=r"callbacks\.0.*'HillClimbingTrainer'.*calls none"):
        check_combination(tiny.parameters(trainer=reference, callbacks=[STOP]), EXAMPLES)
    library = HyperParameters(
        scenario="gymnasium", trainer="torchrl_dqn", dataset="CartPole-v1", callbacks=[STOP]
    )
    with pytest.raises(ParameterError, match=r"its own hooks.*torchrl\.keep_best"):
        check_combination(library)


def test_callbacks_of_networks_are_no_callbacks_of_chat_models():
    hyper_params = HyperParameters(
        scenario="code_validation",
        trainer="pure_text_ei",
        dataset="generated",
        callbacks=["gradient_statistics"],
    )
    with pytest.raises(ParameterError, match=r"for trainers of networks, but 'pure_text_ei'"):
        check_combination(hyper_params)
    keep = {"name": "keep_best", "metric": "verifier.accuracy", "dataset": "test"}
    with pytest.raises(ParameterError, match=r"callbacks\.0\.dataset: got 'test'.*cost money"):
        check_combination(hyper_params.replace({"callbacks": [keep]}))
