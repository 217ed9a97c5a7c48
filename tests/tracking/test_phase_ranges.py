"""Phases in mirrors."""

from ratchet.tracking import RunManifest
from ratchet.tracking.mirrors.payload import run_note, run_tags

PHASES = [{"name": "alone", "num_iterations": 3}, {"name": "joint", "num_iterations": 5}]


def test_tags_and_the_note_contain_the_iterations_of_each_phase():
    arms = {"main": {"seed": 1, "phases": PHASES}, "plain": {"seed": 1}}
    manifest = RunManifest(run_id="one", name="tiny", arms=arms)
    assert run_tags(manifest, "main")["ratchet.phases"] == "alone 0–3 · joint 3–8"
    assert "alone 0–3 · joint 3–8" in run_note(manifest, "main")
    assert "ratchet.phases" not in run_tags(manifest, "plain")
