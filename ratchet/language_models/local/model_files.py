"""What a model's folder holds besides its weights, kept so that a trained one can be written."""

from __future__ import annotations

from pathlib import Path

from ratchet.language_models.service.engine.model_folder import configuration_files
from ratchet.language_models.service.engine.tokenizer import ChatTokenizer
from ratchet.models.folders import read_json


class ModelFiles:
    """Configuration and tokenizer of a model, read once: its folder may go away.

    Raises
    ------
    DataError
        As :class:`ChatTokenizer` does.
    """

    def __init__(self, folder: Path) -> None:
        self.tokenizer = ChatTokenizer(folder)
        self.pad_token_id = self._read_pad_id(folder)
        self._contents = {file.name: file.read_bytes() for file in configuration_files(folder)}

    def _read_pad_id(self, folder: Path) -> int:
        """The configuration's, or a token that ends a message: masks decide what is padding."""
        file = folder / "config.json"
        pad = read_json(file).get("pad_token_id") if file.is_file() else None
        return self.tokenizer.end_ids[0] if pad is None or pad < 0 else int(pad)

    def write(self, folder: Path) -> None:
        """Write the files to a folder, which is made if it is not there."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self._contents.items():
            (folder / name).write_bytes(content)
