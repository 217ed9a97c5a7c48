"""Trained models and their checkpoints, as the ``tinker`` client's REST calls describe them."""

from __future__ import annotations

import time
from typing import Any

from ratchet.service.api.errors import ApiError, not_found
from ratchet.service.api.tinker.requests import is_run
from ratchet.service.service import ModelService
from ratchet.service.training_sessions.checkpoints import SCHEME, Checkpoint
from ratchet.service.training_sessions.operations import SessionObject
from ratchet.service.training_sessions.records import TINKER

Json = dict[str, Any]
_TYPES = {
    "weights": "training",
    "sampler_weights": "sampler",
    "external_weights": "external",
}
_CONFLICT = 409


class TrainingRuns:
    """Descriptions of a service's training sessions and saved weights."""

    def __init__(self, service: ModelService) -> None:
        self._records = service.training.records
        self._checkpoints = service.training.checkpoints
        self._models = service.models
        self._forget = service.batcher.forget

    def session(self, run: str) -> SessionObject:
        """Return the session of a trained model."""
        records = self._records
        row = records.of_intent(f"{TINKER}{run}") if is_run(run) else records.row(run)
        return records.describe(row)

    def page(self, limit: int, offset: int) -> Json:
        """List trained models, newest first."""
        sessions = self._records.all()[::-1]
        runs = [self.describe(session) for session in sessions[offset : offset + limit]]
        return {"training_runs": runs, "cursor": _cursor(limit, offset, len(sessions))}

    def describe(self, session: SessionObject) -> Json:
        """Describe a trained model."""
        run = run_of(session)
        last = {}
        for checkpoint in self._checkpoints.page(run)[0][::-1]:
            last[checkpoint.kind] = self._describe(checkpoint)
        return {
            "training_run_id": run,
            **self.adapter(session),
            "model_owner": "user",
            "last_request_time": _time(session.used_at),
            "last_checkpoint": last.get("weights"),
            "last_sampler_checkpoint": last.get("sampler_weights"),
            "user_metadata": session.metadata,
            "next_seq_id": session.next_sequence + 1,
        }

    def adapter(self, session: SessionObject) -> Json:
        """Describe what a session trains."""
        return {
            "base_model": self._models.root_of(session.model),
            "is_lora": session.lora_rank > 0,
            "lora_rank": session.lora_rank or None,
        }

    def weights_info(self, path: str) -> Json:
        """Describe saved weights by their path, for clients that train them further."""
        model = self._models.get(self._checkpoints.model_of(path))
        saver = self._records.saver_of(model.id)
        if saver is None:
            is_lora = bool(model.below)
            return {"base_model": model.root, "is_lora": is_lora, "lora_rank": None}
        parts = {"train_unembed": False, "train_mlp": True, "train_attn": True}
        return {**self.adapter(self._records.describe(saver)), **parts}

    def checkpoints(self, run: str | None, limit: int, offset: int) -> Json:
        """List saved weights of a trained model, or of all, newest first."""
        if run is not None:
            self.session(run)
        page, total = self._checkpoints.page(run, limit=limit, offset=offset)
        described = [self._describe(checkpoint) for checkpoint in page]
        return {"checkpoints": described, "cursor": _cursor(limit, offset, total)}

    def delete(self, path: str) -> None:
        """Delete saved weights."""
        model = self._checkpoints.get(path).model
        try:
            self._models.delete(model)
        except ApiError as error:
            if error.status == _CONFLICT:  # which the client would retry for minutes
                raise ApiError(400, str(error), code=error.code, param=error.param) from error
            raise
        self._forget(model)

    def sessions(self, limit: int, offset: int) -> Json:
        """List the sessions of clients that have trained models, newest first."""
        names = dict.fromkeys(map(_client_of, self._records.all()[::-1]))
        return {"sessions": list(names)[offset : offset + limit]}

    def client_session(self, name: str) -> Json:
        """Describe the session of a client."""
        sessions = self._records.all()
        runs = [run_of(session) for session in sessions if _client_of(session) == name]
        if not runs:
            raise not_found("session", name)
        return {"training_run_ids": runs, "sampler_ids": []}

    def path_of(self, model: str) -> str | None:
        """Return the path of a saved model; None for a base model."""
        checkpoint = self._checkpoints.of_model(model)
        if checkpoint is not None:
            return f"{SCHEME}{checkpoint.path}"
        return None if model == self._models.root_of(model) else f"{SCHEME}{model}"

    def _describe(self, checkpoint: Checkpoint) -> Json:
        expires = checkpoint.expires_at
        return {
            "checkpoint_id": f"{checkpoint.kind}/{checkpoint.name}",
            "checkpoint_type": _TYPES[checkpoint.kind],
            "time": _time(checkpoint.created_at),
            "tinker_path": f"{SCHEME}{checkpoint.path}",
            "size_bytes": self._models.size_of(checkpoint.model),
            "public": checkpoint.is_public,
            "user_metadata": checkpoint.metadata,
            "expires_at": None if expires is None else _time(expires),
        }


def run_of(session: SessionObject) -> str:
    """Return the id under which clients know a session."""
    intent = session.intent or ""
    return intent.removeprefix(TINKER) if intent.startswith(TINKER) else session.id


def _client_of(session: SessionObject) -> str:
    """Return the id of the client's session in which a model was created."""
    return run_of(session).partition(":")[0]


def _cursor(limit: int, offset: int, total: int) -> Json:
    return {"offset": offset, "limit": limit, "total_count": total}


def _time(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
