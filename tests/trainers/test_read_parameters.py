"""Every field declares its purposes, and changes exactly the stages that read it for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest

from ratchet import HyperParameters
from ratchet.errors import RatchetError
from ratchet.parameters import SECTIONS, SubParameters, register_parameters
from ratchet.parameters.base import AGENT_MODELS
from ratchet.parameters.key_inputs import data_parameters, section_read
from ratchet.parameters.purposes import Purpose, declared_purposes
from ratchet.parameters.reading.discovery import load_plugins
from ratchet.parameters.trainers import ImitationParameters, TorchRlParameters
from trainers.registry import trainer_class
from trainers.stage_parameters import NETWORK_STAGES
from trainers.tensordict.vanilla_ppo import VanillaPpoTrainer

load_plugins()
SHIPPED = {name: s for name, s in SECTIONS.items() if s.model.__module__.startswith("ratchet.")}
MODELS = [
    HyperParameters,
    *(section.model for section in SHIPPED.values()),
    *dict.fromkeys(AGENT_MODELS.values()),
]
GRAPHS = {"scenario": "graph_isomorphism", "dataset": "generated"}
CODE = {"scenario": "code_validation", "dataset": "generated"}
COMMON = {"rl", "nip_protocol", "protocol_common", "dataset_options", "message_regression"}
ON_TENSORS = COMMON | {"zk_protocol", "solo_agent", "imitation"}
NOBODY_IMITATES = {f"imitation.{name}" for name in ImitationParameters.model_fields} - {
    "imitation.agents"
}
KL = {f"ppo.{name}" for name in ("kl_target", "kl_beta", "kl_decrement", "kl_increment")}
SPG = {"spg.ihvp_variant", "spg.ihvp_rank", "spg.ihvp_rho", "spg.ihvp_num_iterations"}
GRPO = {f"grpo.{name}" for name in ("aggregation_constant", "baseline_decay")}
OF_NETWORKS = {"pretrain_agents", "d_representation", "message_size"}
OF_NETWORKS |= {"include_linear_message_space", "d_linear_message_space"}
EXPERIMENTS: dict[str, tuple[dict[str, Any], set[str], set[str]]] = {
    # Given values, sections that are read, and fields of the others, unchanged.
    "vanilla_ppo": (
        {
            **GRAPHS,
            "trainer": "vanilla_ppo",
            "pretrain_agents": True,
            "imitation": {"agents": ["prover"]},
        },
        ON_TENSORS | {"graph_isomorphism", "ppo"},
        KL,
    ),
    "penalty": (
        {
            "scenario": "binary_erasure_channel",
            "dataset": "generated",
            "trainer": "vanilla_ppo",
            "ppo": {"loss_type": "kl_penalty"},
            "rl": {"anneal_lr": True},
            "message_regression": {"enabled": True},
        },
        ON_TENSORS | {"binary_erasure_channel", "ppo"},
        NOBODY_IMITATES,
    ),
    "reinforce": (
        {"scenario": "image_classification", "dataset": "synthetic", "trainer": "reinforce"},
        ON_TENSORS | {"image_classification", "reinforce"},
        NOBODY_IMITATES,
    ),
    "spg": (
        {**GRAPHS, "trainer": "spg", "graph_isomorphism": {"dataset_seed": 1}},
        ON_TENSORS | {"graph_isomorphism", "ppo", "spg"},
        {*KL, *SPG, *NOBODY_IMITATES, "spg.additional_lola_term"},
    ),
    "solo_agent": (
        {**GRAPHS, "trainer": "solo_agent"},
        ON_TENSORS | {"graph_isomorphism"},
        NOBODY_IMITATES,
    ),
    "environment": (
        {"scenario": "gymnasium", "dataset": "CartPole-v1", "trainer": "vanilla_ppo"},
        (ON_TENSORS - {"nip_protocol"}) | {"gymnasium", "ppo"},
        KL | NOBODY_IMITATES,
    ),
    "grpo": (
        {"scenario": "language_task", "dataset": "reverse", "trainer": "grpo"},
        {"language_task", "language", "grpo"},
        GRPO | {"grpo.max_resamples", "language.algorithm"} | OF_NETWORKS,
    ),
    "remote_grpo": (
        {
            "scenario": "language_task",
            "dataset": "reverse",
            "trainer": "remote_grpo",
            "language": {"train_service": {"backend": "ratchet"}},
        },
        {"language_task", "language", "grpo"},
        GRPO | {"grpo.max_resamples", "language.algorithm"} | OF_NETWORKS,
    ),
    "pure_text_ei": (
        {**CODE, "trainer": "pure_text_ei"},
        COMMON | {"code_validation", "text_rl", "pure_text_ei", "bug_generator"},
        set(),
    ),
    "written_bugs": (
        {**CODE, "trainer": "pure_text_ei", "bug_generator": {"model_name": "writer"}},
        COMMON | {"code_validation", "text_rl", "pure_text_ei", "bug_generator"},
        set(),
    ),
    "pure_text_grpo": (
        {**CODE, "trainer": "pure_text_grpo"},
        COMMON | {"code_validation", "text_rl", "pure_text_grpo", "bug_generator"},
        {"pure_text_grpo.aggregation_constant"},
    ),
    "pure_text_malt": (
        {
            **CODE,
            "trainer": "pure_text_malt",
            "text_rl": {"test_on_whole_dataset": False},
            "message_regression": {"enabled": True},
        },
        COMMON | {"code_validation", "text_rl", "pure_text_malt", "bug_generator"},
        set(),
    ),
}
VALUES: dict[str, Any] = {
    # Of fields that nothing can be guessed for.
    "trainer": ["spg", "pure_text_malt", "pure_text_ei", "solo_agent"],
    "interaction_protocol": ["debate"],
    "update_schedule": [{"kind": "contiguous_periodic", "period": 2, "start": 0, "stop": 1}],
    "stackelberg_sequence": [[["prover"], ["verifier"]]],
    "extra_test_sets": [{"hard": {}}],
    "selected_classes": [[0, 1]],
    "imitation.source": ["run:other"],
    "message_regression.agents": [["prover"]],
}


def _others(path: str, value: object, annotation: object) -> Iterator[object]:
    """Guess values that the field may take."""
    yield from VALUES.get(path, VALUES.get(path.rpartition(".")[2], ()))
    yield from _literals(annotation)
    match value:
        case bool():
            yield not value
        case int() | float():
            yield from (value + 1, value / 2, value + 0.1)
        case dict():
            yield from ({name: 3 for name in value}, {"a": 1})
        case list():
            yield from (value[:1], [*value, 3], [1])
    yield from (3, 0.5, "other", ["other"])


def _literals(annotation: object) -> Iterator[object]:
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
        return
    for part in get_args(annotation):
        yield from _literals(part)


def _fields(hyper_params: HyperParameters) -> Iterator[tuple[str, object, frozenset[Purpose]]]:
    """Go through all fields but phases and the scenario, for which other agents would be needed."""
    data = hyper_params.to_dict()
    agent = AGENT_MODELS[hyper_params.scenario]
    groups = [("", HyperParameters, data)]
    groups += [(f"{name}.", section.model, data[name]) for name, section in SHIPPED.items()]
    groups += [("agents._default.", agent, data["agents"]["_default"])]
    for prefix, model, values in groups:
        for name, purposes in declared_purposes(model).items():
            if prefix + name not in ("scenario", "phases"):  # phases have separate tests
                field = model.model_fields[name]
                for other in _others(prefix + name, values.get(name), field.annotation):
                    changed = _changed(hyper_params, prefix + name, other)
                    if changed is not None:
                        yield prefix + name, changed, purposes
                        break


def _changed(hyper_params: HyperParameters, path: str, value: object) -> HyperParameters | None:
    try:
        changed = hyper_params.replace({path: value})
        trainer_class(changed)
    except RatchetError:
        return None
    return None if changed == hyper_params else changed


def _stages(trainer: Any, hyper_params: HyperParameters) -> dict[str, Any]:
    stages = trainer.stage_purposes(hyper_params)
    found = {name: trainer.stage_key_parameters(hyper_params, name) for name in stages}
    return {"build_scenario": data_parameters(hyper_params), **found}


@pytest.mark.slow
@pytest.mark.in_turn(4)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_change_reaches_the_stages_that_read_for_its_purpose_and_no_other(name):
    given, sections, unread = EXPERIMENTS[name]
    hyper_params = HyperParameters(**given)
    trainer = trainer_class(hyper_params)
    before = _stages(trainer, hyper_params)
    reads = {"build_scenario": {Purpose.DATA}, **trainer.stage_purposes(hyper_params)}
    wrong, seen = {}, set()
    for path, changed, purposes in _fields(hyper_params):
        seen.add(path)
        section = path.partition(".")[0]
        is_read = (section in sections or section not in SECTIONS) and path not in unread
        is_of_all_data = section in ("dataset_options", "validation")  # for any trainer
        data = {"build_scenario"} if is_of_all_data else set()
        expected = {stage for stage in reads if is_read and purposes & reads[stage]} | data
        if path == "seed" and hyper_params.graph_isomorphism.dataset_seed is not None:
            expected.remove("build_scenario")
        after = _stages(trainer, changed)
        found = {stage for stage in before if before[stage] != after[stage]}
        if found != expected:
            wrong[path] = (found, expected)
    assert not wrong
    assert {"seed", "test_size", "rl.lr", "nip_protocol.max_message_rounds"} <= seen
    assert len(seen) > 130, "most fields can be changed"


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_field_of_ours_says_what_it_is_read_for(model):
    silent = [name for name, purposes in declared_purposes(model).items() if not purposes]
    assert not silent, "write Annotated[…, Purpose.…], or read_for=… for the whole class"


def test_nothing_is_read_for_no_purpose_and_for_another():
    for model in MODELS:
        for name, purposes in declared_purposes(model).items():
            assert purposes == {Purpose.NOTHING} or Purpose.NOTHING not in purposes, name


def test_what_pretraining_reads_is_what_trainers_say_of_it():
    read = [name for name, its in declared_purposes(HyperParameters).items() if _pretrains(its)]
    for name, section in SHIPPED.items():
        if any(map(_pretrains, declared_purposes(section.model).values())):
            read.append(name)
    assert set(VanillaPpoTrainer.PRETRAINED_MODEL_CACHE_PARAM_KEYS) == set(read)


def _pretrains(purposes: frozenset[Purpose]) -> bool:
    return Purpose.PRETRAINING in purposes


def test_the_librarys_trainers_read_its_section_for_learning_and_for_tests():
    section = TorchRlParameters()
    assert list(section_read(section, {Purpose.TESTS})) == ["keep_best"]
    learning = section_read(section, {Purpose.LEARNING})
    configured = {"config", "choices", "transforms", "batches_per_iteration"}
    assert set(section.to_dict()) - set(learning) == configured


@pytest.fixture
def plugin():
    """Register sections of a plug-in's, and forget them again."""
    yield lambda model, **readers: register_parameters("mine", **readers)(model)
    SECTIONS.pop("mine")


def _changed_stages(**changes: object) -> set[str]:
    plain = {path.replace("__", "."): value for path, value in changes.items()}
    hyper_params = HyperParameters(**GRAPHS, trainer="vanilla_ppo")
    one = _stages(VanillaPpoTrainer, hyper_params)
    other = _stages(VanillaPpoTrainer, hyper_params.replace(plain))
    return {stage for stage in one if one[stage] != other[stage]}


def test_a_plugins_field_that_says_nothing_is_read_by_every_stage(plugin):
    class Silent(SubParameters):
        size: int = 1

    @plugin
    class Mine(Silent, read_for=Purpose.TESTS):
        strict: bool = False
        rate: Annotated[float, Purpose.LEARNING] = 1.0

    every = {"build_scenario", *NETWORK_STAGES}
    assert _changed_stages(mine__size=2) == every, "a class's declaration applies to its own fields"
    assert _changed_stages(mine__strict=True) == {"test"}
    assert _changed_stages(mine__rate=2.0) == {"train"}


def test_a_section_for_a_trainer_or_protocol_that_says_nothing_decides_no_data(plugin):
    class Mine(SubParameters):
        size: int = 1

    plugin(Mine, protocols=("nip",))
    assert _changed_stages(mine__size=2) == set(NETWORK_STAGES)
    plugin(Mine, protocols=("nip",), scenarios=("graph_isomorphism",))
    assert _changed_stages(mine__size=2) == {"build_scenario", *NETWORK_STAGES}
