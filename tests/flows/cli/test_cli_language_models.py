"""Options of ``ratchet llm serve`` reach the service."""

from __future__ import annotations

import os
import sys

from typer.testing import CliRunner

from flows.cli.language_models import llm
from ratchet.models.lora import Lora
from ratchet.service import __main__ as service
from ratchet.service import serving
from ratchet.service.settings import RetentionRules, ServiceSettings


def _settings(monkeypatch, *options):
    """Return the settings of a service started with these options."""
    started, served = [], []
    monkeypatch.setattr(os, "execv", lambda _, command: started.append(command))
    monkeypatch.setattr(serving, "serve", served.append)
    done = CliRunner().invoke(llm, ["serve", *options])
    assert done.exit_code == 0, done.output
    (command,) = started
    monkeypatch.setattr(sys, "argv", command[command.index("-m") + 1 :])
    assert service.main() == 0
    return served[0]


def test_options_reach_the_service_and_others_have_defaults(monkeypatch, tmp_path):
    monkeypatch.delenv("RATCHET_LLM_API_KEY", raising=False)
    home = ["--home", str(tmp_path)]
    assert _settings(monkeypatch, *home) == ServiceSettings(home=tmp_path, port=8399)
    lora = ["--lora-rank", "4", "--lora-alpha", "7", "--lora-dropout", "0.25"]
    kept = ["--keep-checkpoints", "1", "--keep-days", "2.5"]
    memory = ["--micro-batch-size", "3"]
    assert _settings(monkeypatch, *home, *lora, *kept, *memory) == ServiceSettings(
        home=tmp_path,
        port=8399,
        lora=Lora(4, 7, 0.25),
        retention=RetentionRules(checkpoints=1, days=2.5),
        micro_batch_size=3,
    )
