"""The app that `clefq serve` runs: routes, life of the engines, errors of unknown routes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

import clefq
from clefq.serving.http import errors, openapi
from clefq.serving.http.errors import ApiError
from clefq.serving.http.observation import Observation
from clefq.serving.http.page import page
from clefq.serving.http.routes import (
    STATE_KEY,
    answer_head,
    observed,
    operations_router,
    systemone_router,
)
from clefq.serving.http.service import Service
from clefq.serving.http.settings import ServerSettings

if TYPE_CHECKING:
    from clefq.serving.http.backend import Backend
    from clefq.serving.prompts import PromptMaker

_log = logging.getLogger("clefq.server")


def create_app(
    backend: Backend,
    prompts: PromptMaker,
    settings: ServerSettings | None = None,
    on_failure: Callable[[BaseException], None] | None = None,
) -> FastAPI:
    """A SystemOne server.

    The app answers from its first moment: `/health` says 503 while `backend.start` runs in the
    background, and again from the moment that the backend drains. `backend.drain` runs at the
    app's shutdown; draining earlier is the caller's choice.

    Args:
        backend: The engines; not started yet.
        prompts: Of the same checkpoint.
        settings: Dialect, limits, tokens; the defaults when None.
        on_failure: Called with what `backend.start` raised; should end the server.
    """
    settings = settings or ServerSettings()
    service = Service(backend, prompts, settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        starting = asyncio.create_task(_start(service, on_failure))
        try:
            yield
        finally:
            starting.cancel()
            with suppress(asyncio.CancelledError):
                await starting
            await service.backend.drain()
            service.close()

    app = FastAPI(
        title=openapi.TITLE,
        description=openapi.DESCRIPTION,
        version=clefq.__version__,
        lifespan=lifespan,
        redirect_slashes=False,
        # pages of our own: FastAPI's load scripts from another host
        docs_url=None,
        redoc_url=None,
    )
    setattr(app.state, STATE_KEY, service)
    app.include_router(systemone_router(settings.limits))
    app.include_router(operations_router())

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(page(app.openapi()))

    @app.get("/", include_in_schema=False)
    async def root() -> RedirectResponse:
        return RedirectResponse("docs")

    answer_head(app.router)
    app.add_exception_handler(HTTPException, _unknown_route)
    if settings.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.allowed_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after", "server-timing"],
        )
    return app


def service_of(app: FastAPI) -> Service:
    """The service behind an app of `create_app`."""
    service: Service = getattr(app.state, STATE_KEY)
    return service


async def _start(service: Service, on_failure: Callable[[BaseException], None] | None) -> None:
    try:
        await service.warm()
        await service.backend.start()
    except Exception as error:
        if on_failure is None:
            _log.exception("the engines could not be started")
        else:
            on_failure(error)


async def _unknown_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})

    async def work(service: Service, seen: Observation) -> Response:
        if error.status_code == 405:
            message = f"{request.method} is not allowed here"
            raise ApiError.of(errors.WRONG_METHOD, message, headers=headers)
        raise ApiError.of(errors.NO_ROUTE, "there is no such route", headers=headers)

    result: Any = await observed(request, "other", work)
    return result
