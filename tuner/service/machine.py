"""Routes for machines: is it alive, is it ready, what is counted."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response

from tuner.service.access import reads, service_of
from tuner.service.responses import working
from tuner.service.tokens import Caller
from tuner.version import __version__

router = APIRouter(tags=["machines"])
#: A server that has not reached its database for so many seconds is not ready.
NOT_READY_S = 60.0


@router.get("/healthz", summary="Is the server alive?")
async def healthz() -> Response:
    """200 as long as it answers at all."""
    return JSONResponse({"ok": True, "version": __version__})


@router.get("/readyz", summary="Is the server ready?", responses={503: {"description": "Not now."}})
async def readyz(request: Request) -> Response:
    """200 if it has reached its database within the last minute."""
    shelf = service_of(request).shelf
    ago_s = time.monotonic() - shelf.looked_s
    ready = ago_s < NOT_READY_S
    told = {"ready": ready, "snapshot": shelf.present.manifest.number}
    return JSONResponse(told, 200 if ready else 503)


@router.get("/openapi.json", summary="This description, for programs")
async def openapi(request: Request, caller: Annotated[Caller, Depends(reads)]) -> Response:
    """OpenAPI; /docs shows it to people."""
    app: FastAPI = request.app
    return JSONResponse(app.openapi())


@router.get("/metrics", summary="Figures for Prometheus")
async def metrics(request: Request, caller: Annotated[Caller, Depends(reads)]) -> Response:
    """Requests, answers, jobs, rows and the process itself, in Prometheus' text format."""
    service = service_of(request)
    text = await working(service, service.metrics.text)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
