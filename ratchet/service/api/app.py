"""The web application: routes, errors, and its description (``/openapi.json``)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Response
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from ratchet.service.api.auth import HEALTH_PATH, Gate
from ratchet.service.api.errors import ApiErrorBody, install_error_handlers
from ratchet.service.api.routes.chat import chat_routes
from ratchet.service.api.routes.files import file_routes
from ratchet.service.api.routes.fine_tuning import fine_tuning_routes
from ratchet.service.api.routes.models import model_routes, training_model_routes
from ratchet.service.api.routes.tinker import tinker_routes
from ratchet.service.api.routes.tinker_runs import tinker_run_routes
from ratchet.service.api.schemas.chat import ChatCompletionRequest
from ratchet.service.api.schemas.completions import (
    EmbeddingsRequest,
    TextCompletionRequest,
)
from ratchet.service.api.schemas.fine_tuning import CreateJobRequest
from ratchet.service.api.schemas.messages import RequestModel
from ratchet.service.api.schemas.objects import Health
from ratchet.service.api.schemas.responses import ResponseRequest
from ratchet.service.service import ModelService

_TITLE = "Ratchet's model service"
_BODIES: tuple[type[RequestModel], ...] = (
    *(ChatCompletionRequest, TextCompletionRequest, ResponseRequest, EmbeddingsRequest),
    CreateJobRequest,
)


def create_app(service: ModelService, *, instance: str = "") -> FastAPI:
    """Create the application; its lifespan runs the service.

    ``instance`` lets the starter verify that it reached this service.
    """

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        with service.running():
            yield

    app = FastAPI(
        title=_TITLE,
        version="1",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses={"4XX": {"model": ApiErrorBody, "description": "Refused"}},
    )
    install_error_handlers(app)
    kinds = (chat_routes, file_routes, fine_tuning_routes, model_routes)
    for routes in (*kinds, training_model_routes, tinker_routes, tinker_run_routes):
        app.include_router(routes(service))

    @app.get(HEALTH_PATH, response_model=Health, responses={503: {"model": Health}})
    def health(response: Response) -> Health:
        """Return whether models can be called, and whether jobs can run.

        If jobs cannot run, the status is "degraded", with the reason; models are served anyway.
        """
        ready = service.batcher.ready
        ok = ready.done() and ready.exception() is None
        response.status_code = 200 if ok else 503
        problem = service.runner.problem if ok else None
        return Health(
            status="degraded" if problem else "ok" if ok else "starting",
            reason=problem,
            instance=instance,
            model=service.models.base.id,
            pid=os.getpid(),
        )

    app.add_middleware(Gate, settings=service.settings)
    app.openapi = lambda: _describe(app)  # type: ignore[method-assign]
    return app


def _describe(app: FastAPI) -> dict[str, Any]:
    """Describe the app, including bodies that the routes parse themselves."""
    if app.openapi_schema is None:
        content = get_openapi(title=_TITLE, version="1", routes=app.routes)
        _, bodies = models_json_schema(
            [(body, "validation") for body in _BODIES],
            ref_template="#/components/schemas/{model}",
        )
        schemas = content["components"]["schemas"]
        schemas.update(bodies["$defs"])
        for operations in content["paths"].values():
            for operation in operations.values():
                operation["responses"].pop("422", None)  # this service returns a 400
        app.openapi_schema = content
    return app.openapi_schema
