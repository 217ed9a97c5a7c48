"""``from_dict`` undoes ``to_dict`` exactly for all parameters."""

from __future__ import annotations

import json
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, JsonValue, ValidationError

from ratchet.parameters import SECTIONS, HyperParameters
from ratchet.parameters.base import AGENT_MODELS
from ratchet.parameters.reading.discovery import load_plugins

load_plugins()
SHIPPED, SCENARIOS = dict(SECTIONS), sorted(AGENT_MODELS)
"""Built before other tests load files that register more parameters."""
NAMES = st.text("abcdefgh_", min_size=1, max_size=8)
PLAIN = st.none() | st.booleans() | st.integers(-9, 9) | NAMES | st.lists(NAMES, max_size=2)


def model_data(model: type[BaseModel]) -> st.SearchStrategy[dict[str, Any]]:
    """Any subset of a model's fields with values that the model accepts."""
    fields = {
        name: _values(field.annotation, tuple(field.metadata))
        for name, field in model.model_fields.items()
    }
    required = {n: fields[n] for n, field in model.model_fields.items() if field.is_required()}
    optional = {n: values for n, values in fields.items() if n not in required}
    return st.fixed_dictionaries(required, optional=optional).filter(lambda d: _accepts(model, d))


def _accepts(model: type[BaseModel], data: dict[str, Any]) -> bool:
    if model is HyperParameters:  # validates complete files only
        return True
    try:
        model.model_validate(data)
    except ValidationError:
        return False
    return True


def _values(annotation: Any, metadata: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _values(args[0], (*metadata, *args[1:]))
    if origin in (Union, UnionType):
        return st.one_of([_values(arg, metadata) for arg in args])
    if origin is Literal:
        return st.sampled_from(args)
    if origin is tuple:
        if args[-1] is Ellipsis:
            return st.lists(_values(args[0], ()), max_size=3)
        return st.tuples(*(_values(arg, ()) for arg in args)).map(list)
    if origin is dict:
        return st.dictionaries(_values(args[0], ()), _values(args[1], ()), max_size=2)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return model_data(annotation)
    if annotation is int:
        return _numbers(metadata).map(int)
    if annotation is float:
        return _numbers(metadata).map(float)
    if annotation is Any or annotation is JsonValue:
        return PLAIN
    return {bool: st.booleans(), str: NAMES, type(None): st.none()}[annotation]


def _numbers(metadata: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    low, high, open_low, open_high = -100.0, 100.0, False, False
    for bound in metadata:
        match bound:
            case Gt(gt=low):
                open_low = True
            case Ge(ge=low):
                pass
            case Lt(lt=high):
                open_high = True
            case Le(le=high):
                pass
    if high - low > 1:
        return st.integers(int(low) + open_low, int(high) - open_high)
    return st.floats(low, high, exclude_min=open_low, exclude_max=open_high)


@st.composite
def experiments(draw: st.DrawFn) -> dict[str, Any]:
    """Valid top-level keys of an experiment file, or any subset of them."""
    scenario = draw(st.sampled_from(SCENARIOS))
    agent = model_data(AGENT_MODELS[scenario])
    names = st.sampled_from(["_default", "prover", "verifier", "prover0"])
    sections = {name: model_data(section.model) for name, section in SHIPPED.items()}
    data = {
        **draw(model_data(HyperParameters)),
        **draw(st.fixed_dictionaries({}, optional=sections)),
        "scenario": scenario,
        "agents": draw(st.dictionaries(names, agent, max_size=3)),
    }
    return _with_one_sum(data)


def _with_one_sum(data: dict[str, Any]) -> dict[str, Any]:
    """Discard phases with duplicate names or an inconsistent number of iterations."""
    phases = list({phase["name"]: phase for phase in data.get("phases", ())}.values())
    if not phases:
        return data
    rl = {name: value for name, value in data.get("rl", {}).items() if name != "num_iterations"}
    return {**data, "phases": phases, "rl": rl}


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(experiments())
def test_from_dict_undoes_to_dict(data: dict[str, Any]) -> None:
    hyper_params = HyperParameters.from_dict(data)
    plain = hyper_params.to_dict()
    again = HyperParameters.from_dict(plain)
    assert again == hyper_params
    assert again.to_dict() == plain
    assert {name: type(again.agents[name]) for name in again.agents} == {
        name: type(hyper_params.agents[name]) for name in hyper_params.agents
    }


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(experiments())
def test_plain_data_survives_json(data: dict[str, Any]) -> None:
    plain = HyperParameters.from_dict(data).to_dict()
    assert json.loads(json.dumps(plain)) == plain


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(experiments())
def test_what_was_given_is_what_is_read(data: dict[str, Any]) -> None:
    plain = HyperParameters.from_dict(data).to_dict()
    for name, section in SHIPPED.items():
        for key, value in data.get(name, {}).items():
            if not isinstance(value, dict):
                assert plain[name].get(key) == value, (section.name, key)
