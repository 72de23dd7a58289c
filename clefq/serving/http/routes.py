"""The routes, as routers: for an app of our own and for one that somebody else built.

The service is looked up in the app's state when a request comes, so that routes can be attached
before there is an engine.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute
from prometheus_client.exposition import choose_encoder
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from clefq.serving.http import errors, openapi
from clefq.serving.http.answers import encode_json
from clefq.serving.http.backend import ServerInfo
from clefq.serving.http.body import BodyReader
from clefq.serving.http.errors import ApiError
from clefq.serving.http.models import Health, ModelList
from clefq.serving.http.observation import (
    CLIENT_GONE,
    Observation,
    log_access,
    request_id,
    trace_of,
)
from clefq.serving.http.service import ClientGoneError, Service
from clefq.serving.http.settings import Limits

STATE_KEY = "clefq_service"
"""Attribute of `app.state` that holds the `Service`."""

ASK = "/v1/systemone"
MODELS = "/v1/models"
HEALTH = "/health"
READY = "/readyz"
LIVE = "/livez"
METRICS = "/metrics"
PROBES = (HEALTH, READY, LIVE, METRICS)
"""Routes that machines ask all day; they need no token and are not logged by default."""

_JSON = "application/json"
# What a refused client may still send before its connection is closed.
_DISCARD_BYTES = 16 << 20
_DISCARD_SECONDS = 2.0
_log = logging.getLogger("clefq.server")

Work = Callable[[Service, Observation], Awaitable[Response]]


def systemone_router(limits: Limits) -> APIRouter:
    """`POST /v1/systemone` alone, for an app that has its own models, health and metrics.

    Args:
        limits: Stated in the description; those that are enforced are the service's.
    """
    router = APIRouter(route_class=openapi.UnreadRoute)

    async def systemone(request: Request) -> Response:
        return await observed(request, ASK, lambda service, seen: service.answer(request, seen))

    openapi.describe_ask(systemone, limits)
    router.add_api_route(
        ASK,
        systemone,
        methods=["POST"],
        summary=openapi.ASK_SUMMARY,
        response_model=None,
        responses=openapi.ask_responses(),
        openapi_extra=openapi.multipart_body(),
        dependencies=[openapi.BEARER],
    )
    return router


def operations_router() -> APIRouter:
    """`GET /v1/models`, `/livez`, `/readyz`, `/health` and `/metrics`."""
    router = APIRouter(route_class=openapi.UnreadRoute)

    @router.get(
        MODELS,
        summary="Names that the model goes by, and what runs it",
        response_model=None,
        responses=openapi.responses(ModelList, errors.UNAUTHENTICATED, errors.UNAVAILABLE),
        dependencies=[openapi.BEARER],
    )
    async def models(request: Request) -> Response:
        async def work(service: Service, seen: Observation) -> Response:
            seen.client_name = service.authorize(request.headers)
            if service.backend.state == "starting":
                service.check_open()
            return Response(encode_json(models_body(service.backend.info)), media_type=_JSON)

        return await observed(request, MODELS, work)

    @router.get(
        HEALTH,
        summary="As /readyz",
        response_model=None,
        responses=openapi.responses(Health, errors.UNAVAILABLE),
    )
    @router.get(
        READY,
        summary="200 once every engine is warm; 503 while starting and draining",
        response_model=None,
        responses=openapi.responses(Health, errors.UNAVAILABLE),
    )
    async def ready(request: Request) -> Response:
        async def work(service: Service, seen: Observation) -> Response:
            service.check_open()
            return Response(encode_json({"status": "ready"}), media_type=_JSON)

        return await observed(request, request.url.path, work)

    @router.get(
        LIVE,
        summary="200 for as long as the server answers at all",
        response_model=None,
        responses=openapi.responses(Health),
    )
    async def live(request: Request) -> Response:
        async def work(service: Service, seen: Observation) -> Response:
            return Response(encode_json({"status": service.backend.state}), media_type=_JSON)

        return await observed(request, LIVE, work)

    @router.get(METRICS, summary="Prometheus metrics", response_class=Response)
    async def metrics(request: Request) -> Response:
        async def work(service: Service, seen: Observation) -> Response:
            encode, content_type = choose_encoder(request.headers.get("accept", ""))
            return Response(
                encode(service.metrics.registry), headers={"content-type": content_type}
            )

        return await observed(request, METRICS, work)

    answer_head(router)
    return router


def answer_head(router: APIRouter) -> None:
    """Lets every GET route answer HEAD as well (RFC 9110 §9.3.2)."""
    for route in [one for one in router.routes if isinstance(one, APIRoute)]:
        if route.methods == {"GET"}:
            router.add_api_route(
                route.path, route.endpoint, methods=["HEAD"], include_in_schema=False
            )


async def observed(request: Request, route: str, work: Work) -> Response:
    """Runs a route: request id, errors in the caller's dialect, timing, metrics, access log."""
    service = getattr(request.app.state, STATE_KEY, None)
    if service is None:  # attached to an app whose engine is not there yet
        error = ApiError.of(errors.UNAVAILABLE, "the server is starting")
        seen = Observation(request_id(None), route, "release", BodyReader(request.receive))
        return _error_response(error, seen)
    assert isinstance(service, Service)
    headers = request.headers
    body = BodyReader(request.receive)
    seen = Observation(
        request_id(headers.get("x-request-id")), route, service.dialect(headers), body
    )
    seen.trace = trace_of(headers.get("traceparent"))
    try:
        response = await work(service, seen)
        response.headers.update(seen.headers())
    except ApiError as error:
        response = _error_response(error, seen)
        await _finish_body(request, seen, response)
    except (ClientGoneError, ClientDisconnect):
        response = Response(status_code=CLIENT_GONE)
    except Exception:
        _log.exception("request %s failed", seen.id)
        message = f"the server failed; its log has the cause under request id {seen.id}"
        response = _error_response(ApiError.of(errors.INTERNAL, message), seen)
    if service.backend.state == "draining":
        response.headers["connection"] = "close"
    seen.status = response.status_code
    seen.seconds = time.perf_counter() - seen.started
    service.metrics.record(seen)
    settings = service.settings
    if settings.access_log and (settings.log_probes or route not in PROBES):
        log_access(request, seen)
    return response


async def _finish_body(request: Request, seen: Observation, response: Response) -> None:
    """Lets a refused client finish sending, within limits, so that it reads its answer."""
    headers = request.headers
    if "transfer-encoding" not in headers and headers.get("content-length", "0") == "0":
        return
    # a client that waits to be told to go on, or that is slow, is not waited for
    if "expect" not in headers and seen.error != errors.TOO_SLOW.type:
        await seen.body.discard(_DISCARD_BYTES, _DISCARD_SECONDS)
    if not seen.body.ended:
        response.headers["connection"] = "close"


def models_body(info: ServerInfo) -> dict[str, Any]:
    """`/v1/models` in the two forms that clients read: OpenAI's and the hosted API's."""
    details = {
        "engine": info.engine,
        "engine_version": info.engine_version,
        "kernels": info.kernels,
        "arithmetic": info.arithmetic,
        "dtype": info.dtype,
        "device": info.device,
        "scheme": info.scheme,
        "sha256": info.sha256,
        "max_length": info.max_length,
        "max_images": info.max_images,
    }
    released = datetime.fromtimestamp(info.created, UTC).date().isoformat()
    description = f"Clef, {info.scheme}, {info.arithmetic} on {info.device}"
    return {
        "object": "list",
        "data": [
            {
                "id": name,
                "object": "model",
                "created": info.created,
                "owned_by": "clefq",
                "root": info.names[0],
                "max_model_len": info.max_length,
                "clefq": details,
            }
            for name in info.names
        ],
        "models": [
            {"name": name, "description": description, "release_date": released}
            for name in info.names
        ],
    }


def _error_response(error: ApiError, seen: Observation) -> Response:
    seen.error = error.kind.type
    return Response(
        encode_json(error.body(seen.dialect)),
        error.status(seen.dialect),
        {**error.headers, **seen.headers()},
        _JSON,
    )
