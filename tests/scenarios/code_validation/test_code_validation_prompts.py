"""System prompts: every protocol has them, and errors in them are reported before a run."""

from __future__ import annotations

import shutil
from string import Template

import pytest

from ratchet import HyperParameters
from ratchet.errors import PromptTemplateError
from ratchet.protocols.checks import check_text_specs
from ratchet.protocols.registry import build_protocol_handler
from ratchet.scenarios.code_validation import scenario
from ratchet.scenarios.code_validation.scenario import SystemPrompts
from ratchet.scenarios.pure_text.episode import Position
from ratchet.scenarios.pure_text.rules import rules_of
from ratchet.scenarios.pure_text.views import view_of
from ratchet.scenarios.registry import build_scenario
from tasks.text.keys import TextArmKeys

PROTOCOLS = ("nip", "adp", "debate", "merlin_arthur", "mnip", "solo_verifier")
PROGRAM = "def f(x):\n    return '$question' + '$$'"


def parameters(protocol="nip", kind="full", **changes):
    hyper_params = HyperParameters(
        scenario="code_validation",
        trainer="pure_text_ei",
        dataset="generated",
        interaction_protocol=protocol,
        code_validation={"prompt_templates": kind},
    )
    return hyper_params.replace({key.replace("__", "."): v for key, v in changes.items()})


def rendered(protocol="nip", kind="full", stance=1, **changes):
    hyper_params = parameters(protocol, kind, **changes)
    handler = build_protocol_handler(hyper_params)
    system_prompts = SystemPrompts.of(hyper_params, handler)
    position = Position(0, 1, stance, "the question", PROGRAM)
    game = rules_of(handler)
    return {a: system_prompts.render(view_of(game, position, a)) for a in handler.agent_names}


@pytest.fixture
def custom_templates(tmp_path, monkeypatch):
    """Return a copy of the templates that a test may spoil."""
    shutil.copytree(scenario.TEMPLATES, tmp_path / "templates")
    monkeypatch.setattr(scenario, "TEMPLATES", tmp_path / "templates")
    return tmp_path / "templates"


def load(protocol="nip", **changes):
    hyper_params = parameters(protocol, **changes)
    return SystemPrompts.of(hyper_params, build_protocol_handler(hyper_params))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_agent_is_told_problem_program_length_and_how_to_answer(protocol):
    handler = build_protocol_handler(parameters(protocol))
    specs = check_text_specs(handler)
    told = rendered(protocol, agents={"_default": {"max_response_words": 77}})
    for agent, prompt in told.items():
        assert "the question" in prompt
        assert PROGRAM in prompt
        assert not Template(prompt.replace(PROGRAM, "")).get_identifiers()
        for header in specs[agent].headers.values():
            assert f"\n{header} " in prompt
        assert ("77" in prompt) == bool(specs[agent].headers)
        decides = agent in handler.verifier_names
        assert ("\nDecision: accept\n" in prompt) == decides
        assert ("\nDecision: reject\n" in prompt) == decides


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_compact_templates_are_there_too_and_shorter(protocol):
    full, compact = rendered(protocol), rendered(protocol, "compact")
    for agent, prompt in compact.items():
        assert "the question" in prompt
        assert len(prompt) < len(full[agent]) / 2


@pytest.mark.parametrize(
    ("protocol", "aims"),
    [
        ("nip", {"prover": "accept"}),
        ("adp", {"prover": "accept"}),
        ("debate", {"prover0": "reject", "prover1": "accept"}),
        ("merlin_arthur", {"prover0": "reject", "prover1": "accept"}),
        ("mnip", {"prover0": "accept", "prover1": "accept"}),
    ],
)
def test_provers_are_told_to_argue_for_what_pays_them(protocol, aims):
    told = rendered(protocol)
    for agent, aim in aims.items():
        assert f"the verifier decides to {aim} the program" in told[agent]


def test_a_drawn_stance_is_told_to_the_prover_alone():
    by_stance = [
        rendered("nip", stance=stance, protocol_common__randomize_prover_stance=True)
        for stance in (0, 1)
    ]
    assert "decides to reject the program" in by_stance[0]["prover"]
    assert "decides to accept the program" in by_stance[1]["prover"]
    assert by_stance[0]["verifier"] == by_stance[1]["verifier"]


def test_a_verifier_is_told_how_often_it_can_write():
    assert "at most 4 turns" in rendered("nip")["verifier"]
    assert "at most 3 turns" in rendered("nip", nip_protocol__max_message_rounds=5)["verifier"]


def test_experts_are_called_what_they_are_called_in_the_conversation():
    for protocol in ("debate", "mnip"):
        told = rendered(protocol)
        assert told["prover0"].startswith("You are Expert 1")
        assert told["prover1"].startswith("You are Expert 2")


def test_a_missing_template_is_an_error_that_says_where_it_is_looked_for(custom_templates):
    (custom_templates / "full/nip/prover.txt").unlink()
    with pytest.raises(PromptTemplateError, match=r"'prover'.*full/nip/prover\.txt.*\$question"):
        load("nip")
    load("adp")


@pytest.mark.parametrize(
    ("agent", "text", "message"),
    [
        ("prover", "$question", r"prover\.txt: has no \$solution"),
        ("prover", "$question $solution $qestion", r"unknown variable \$qestion .*question"),
        ("prover", "$question $solution costs $ 5", r"'\$' without a variable"),
        ("verifier", "$question $solution $agent_stance_string", "unknown variable"),
    ],
)
def test_a_wrong_template_is_an_error_before_anything_is_played(
    agent, text, message, custom_templates
):
    (custom_templates / f"full/nip/{agent}.txt").write_text(text)
    with pytest.raises(PromptTemplateError, match=message):
        load("nip")


def test_where_stances_are_drawn_the_prover_must_be_told(custom_templates):
    (custom_templates / "full/nip/prover.txt").write_text("$question $solution ${max_questions}")
    load("nip")
    with pytest.raises(PromptTemplateError, match=r"has no \$agent_stance_string"):
        load("nip", protocol_common__randomize_prover_stance=True)


def test_a_protocol_in_a_file_has_its_templates_beside_it(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from ratchet.protocols.nip import NipProtocolHandler\n"
        "class Mine(NipProtocolHandler):\n    '''A protocol.'''\n"
    )
    hyper_params = parameters(f"{tmp_path / 'mine.py'}:Mine")
    handler = build_protocol_handler(hyper_params)
    with pytest.raises(PromptTemplateError, match=r"templates/full/Mine/prover\.txt"):
        SystemPrompts.of(hyper_params, handler)
    folder = tmp_path / "templates/full/Mine"
    shutil.copytree(scenario.TEMPLATES / "full/nip", folder)
    assert set(SystemPrompts.of(hyper_params, handler).templates) == {"prover", "verifier"}


def test_an_edited_template_is_played_anew(custom_templates):
    hyper_params = parameters("nip")

    def key():
        return TextArmKeys("main", hyper_params).sample_rollouts(0)

    before, data = key(), TextArmKeys("main", hyper_params).build_scenario()
    assert key().key == before.key
    file = custom_templates / "full/nip/prover.txt"
    file.write_text(file.read_text() + "Be brief.")
    after = key()
    assert after.key != before.key
    assert after.fingerprint.difference(before.fingerprint) == ["full/nip/prover.txt changed"]
    assert TextArmKeys("main", hyper_params).build_scenario().key == data.key


@pytest.fixture
def custom_folder(tmp_path):
    """Custom templates, next to an experiment's file."""
    folder = tmp_path / "prompts"
    folder.mkdir()
    (folder / "prover.txt").write_text("Mine: $question $solution, say $agent_stance_string.")
    (folder / "verifier.txt").write_text("My verifier: $question $solution")
    return folder


def keys_beside(folder, **changes):
    return TextArmKeys("main", parameters(**changes), base_dir=str(folder.parent))


def told(keys, agent):
    handler = build_protocol_handler(keys.hyper_params)
    source = keys.scenario.build_system_prompts(keys.hyper_params, handler)
    return source.render(view_of(rules_of(handler), Position(0, 1, 1, "q", "s"), agent))


def test_custom_templates_are_a_folder_beside_the_experiment(custom_folder):
    keys = keys_beside(custom_folder, kind="prompts")
    assert told(keys, "prover") == "Mine: q s, say accept."
    assert told(keys, "verifier") == "My verifier: q s"
    absolute = keys_beside(custom_folder, kind=str(custom_folder))
    assert absolute.sample_rollouts(0).key == keys.sample_rollouts(0).key, "no path in a key"


def test_one_agent_may_have_a_custom_template(custom_folder):
    path = {"agents": {"prover": {"system_prompt_template_path": "prompts/prover.txt"}}}
    keys = keys_beside(custom_folder, **path)
    assert told(keys, "prover").startswith("Mine")
    assert told(keys, "verifier").startswith("You are checking")
    assert keys.sample_rollouts(0).key != keys_beside(custom_folder).sample_rollouts(0).key
    moved = custom_folder.rename(custom_folder.with_name("elsewhere"))
    path = {"agents": {"prover": {"system_prompt_template_path": "elsewhere/prover.txt"}}}
    assert keys_beside(moved, **path).sample_rollouts(0).key == keys.sample_rollouts(0).key


def test_custom_templates_count_by_their_content_and_leave_the_data_alone(custom_folder):
    before = keys_beside(custom_folder, kind="prompts")
    rollouts, data = before.sample_rollouts(0), before.build_scenario()
    assert data.key == keys_beside(custom_folder).build_scenario().key
    (custom_folder / "prover.txt").write_text("Now: $question $solution")
    after = keys_beside(custom_folder, kind="prompts")
    assert after.build_scenario().key == data.key
    changes = after.sample_rollouts(0).fingerprint.difference(rollouts.fingerprint)
    assert changes == ["own/prover.txt changed"]


def test_what_is_wrong_with_custom_templates_is_named(custom_folder):
    with pytest.raises(PromptTemplateError, match=r"promts.*full, compact.*folder"):
        keys_beside(custom_folder, kind="promts").sample_rollouts(0)
    path = {"agents": {"prover": {"system_prompt_template_path": "prompts/nobody.txt"}}}
    with pytest.raises(PromptTemplateError, match=r"'prover'.*prompts/nobody\.txt"):
        keys_beside(custom_folder, **path).sample_rollouts(0)
    (custom_folder / "prover.txt").write_text("{{ question }} $solution")
    with pytest.raises(PromptTemplateError, match=r"prover\.txt: has no \$question.*\{\{"):
        keys_beside(custom_folder, kind="prompts").sample_rollouts(0)
    (custom_folder / "verifier.txt").unlink()
    with pytest.raises(PromptTemplateError, match=r"'verifier'.*prompts/verifier\.txt"):
        keys_beside(custom_folder, kind="prompts").sample_rollouts(0)


def test_the_templates_that_are_played_are_named_for_the_run_to_keep(custom_folder):
    files = keys_beside(custom_folder, kind="prompts").played_files
    assert files == {f"own/{a}.txt": custom_folder / f"{a}.txt" for a in ("prover", "verifier")}
    assert set(keys_beside(custom_folder).played_files) == {
        "full/nip/prover.txt",
        "full/nip/verifier.txt",
    }


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_verifier_is_told_in_what_words_it_decides(protocol):
    for scale, answer in (("likert_scale_4", "strongly disagree"), ("out_of_10", "<number>")):
        told = rendered(protocol, protocol_common__verifier_decision_scale=scale)["verifier"]
        assert f"Decision: {answer}" in told
        assert "Decision: accept" not in told


def test_a_template_that_does_not_tell_the_scale_is_an_error():
    expected = r"has no \$decision_instructions.*built-in templates `full`, which include it"
    with pytest.raises(PromptTemplateError, match=expected):
        load("nip", kind="compact", protocol_common__verifier_decision_scale="out_of_10")


def test_templates_of_other_protocols_change_nothing(custom_templates):
    hyper_params = parameters("nip")
    handler = build_protocol_handler(hyper_params)
    scenario = build_scenario("code_validation")
    before = scenario.file_digests(hyper_params, handler)
    assert set(before) == {"full/nip/prover.txt", "full/nip/verifier.txt"}
    (custom_templates / "full/adp/prover.txt").write_text("$question $solution")
    (custom_templates / "compact/nip/prover.txt").write_text("$question $solution")
    assert scenario.file_digests(hyper_params, handler) == before
