"""The model service as a process, with an engine that generates text from hashes.

``python game_service.py HOME PORT_FILE [PORT]``. Everything except the engine and the trainer
is the shipped service.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
from pathlib import Path

import uvicorn

from ratchet.language_models.engines.interface import GenerationResult
from ratchet.service.api.app import create_app
from ratchet.service.models import StoredModel
from ratchet.service.service import ModelService
from ratchet.service.settings import ServiceSettings

WORDS = ("line", "return", "loop", "bug", "fine", "step", "value", "sum")


class GameEngine:
    """Engine with valid responses that are functions of the model, the prompt and the seed."""

    max_batch_size = 64

    def __init__(self) -> None:
        self.models: dict[str, bytes] = {}

    def load(self, model_id, folder, adapters=()):
        self.models[model_id] = (folder / "config.json").read_bytes()

    def unload(self, model_id):
        del self.models[model_id]

    def generate(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        said = repr([self.models[request.model], request.messages, request.seed]).encode()
        digest = hashlib.sha256(said).digest()
        decides = "Decision:" in request.messages[0].content
        if digest[0] < 12:
            text = "I would rather not say."  # invalid format: retried
        elif decides:
            text = f"Decision: {'accept' if digest[1] % 2 else 'reject'}"
        else:
            text = "Argument: " + " ".join(WORDS[byte % len(WORDS)] for byte in digest[2:8])
        prompt = sum(len(message.content.split()) for message in request.messages)
        return GenerationResult(text, "stop", prompt, len(text.split()), ())


def main() -> None:
    home, port_file = Path(sys.argv[1]), Path(sys.argv[2])
    port = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    folder = home / "game"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    base = StoredModel("ratchet-tiny", folder, "ratchet-tiny")
    settings = ServiceSettings(home=home, api_key=os.environ["GAME_KEY"])
    service = ModelService(settings, base, GameEngine, trainer="game_trainer")
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(512)
        new = port_file.with_suffix(".new")
        new.write_text(str(listener.getsockname()[1]))
        os.replace(new, port_file)
        config = uvicorn.Config(create_app(service, instance="game"), log_level="error")
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
