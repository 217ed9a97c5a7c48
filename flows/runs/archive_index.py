"""``archive.json``: what a packed run holds, and what it was made with. The first file in it."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ratchet.errors import DataError
from ratchet.store.keys import check_key
from ratchet.store.manifest import FileEntry, Sha256
from ratchet.tracking.environment import CodeState

INDEX_NAME = "archive.json"
RUN_FOLDER, CODE_FOLDER, STAGES_FOLDER = "run", "code", "stages"
_Key = Annotated[str, AfterValidator(check_key)]


class ArchiveIndex(BaseModel):
    """What the archive holds beside itself.

    ``files`` are those of ``run/`` and ``code/`` by path; ``stages`` maps keys to the SHA-256 of
    their manifests, which say the rest. ``versions`` and ``code`` are what the run ran on.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["ratchet-run"] = "ratchet-run"
    format_version: Literal[1] = 1
    run_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.\-]*$", max_length=200)]
    versions: dict[str, str]
    code: CodeState
    files: dict[str, FileEntry]
    stages: dict[_Key, Sha256]

    def to_bytes(self) -> bytes:
        """Write the index in the one way in which it is written."""
        content = self.model_dump(mode="json")
        return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()

    @classmethod
    def from_bytes(cls, text: bytes, where: object) -> ArchiveIndex:
        """Read an index; DataError if it is none, or of a later version."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise DataError(
                f"{where}: its {INDEX_NAME} is not one that this version of Ratchet reads"
                f" ({error})."
            ) from error


class EnvironmentDifference(BaseModel):
    """Something that was otherwise where a run was made; None where it was not there."""

    model_config = ConfigDict(frozen=True)

    name: str
    there: str | None
    here: str | None


def differences(
    there: tuple[dict[str, str], CodeState], here: tuple[dict[str, str], CodeState]
) -> list[EnvironmentDifference]:
    """Compare versions and the code's commits of two places."""
    both = [{**versions, "code": _shown(code)} for versions, code in (there, here)]
    return [
        EnvironmentDifference(name=name, there=both[0].get(name), here=both[1].get(name))
        for name in sorted(both[0].keys() | both[1].keys())
        if both[0].get(name) != both[1].get(name)
    ]


def _shown(code: CodeState) -> str:
    if code.commit is None:
        return "no repository"
    return f"{code.commit[:12]}{' with changes' if code.dirty else ''}"
