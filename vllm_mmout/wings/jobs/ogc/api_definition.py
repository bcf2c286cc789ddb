"""Landing page, conformance classes and API definition of the OGC API Processes interface.

The schemas are those that OGC publishes. The definition refers to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from vllm_mmout.version import __version__
from vllm_mmout.wings.jobs.ogc.job_status import STATUSES
from vllm_mmout.wings.jobs.ogc.links import API, JOBS, JSON, PROCESSES, ROOT, link, url
from vllm_mmout.wings.jobs.ogc.links import CONFORMANCE as TO_CONFORMANCE

if TYPE_CHECKING:
    from starlette.requests import Request

_TITLE: Final = "vllm_mmout: models as processes"
_CLASSES: Final = ("core", "ogc-process-description", "json", "oas30", "job-list", "dismiss")
CONFORMANCE: Final = tuple(f"http://www.opengis.net/spec/ogcapi-processes-1/1.0/conf/{name}" for name in _CLASSES)
"""URIs of the conformance classes of OGC API Processes that this server implements."""
_SCHEMAS: Final = "https://schemas.opengis.net/ogcapi/processes/part1/1.0/openapi/schemas"


def landing_page(request: Request) -> dict[str, Any]:
    """Return the landing page of the OGC API in the form of OGC's schema ``landingPage.yaml``."""
    rows = (
        ("", "self", "this page", JSON),
        ("/api", "service-desc", "API definition", API),
        ("/conformance", TO_CONFORMANCE, "conformance classes", JSON),
        ("/processes", PROCESSES, "processes", JSON),
        ("/jobs", JOBS, "jobs", JSON),
    )
    return {
        "title": _TITLE,
        "description": "Each process runs a model on a picture or raster (OGC API - Processes - Part 1: Core 1.0).",
        "links": [link(url(request, f"{ROOT}{path}"), rel, title, kind) for path, rel, title, kind in rows],
    }


def definition(request: Request) -> dict[str, Any]:
    """Return the API definition, an OpenAPI 3.0 document."""
    job, process = "/jobs/{jobID}", "/processes/{processID}"
    status, results = _json("statusInfo"), {"200": _any("The results."), "204": _linked()}
    offset = _query("offset", {"type": "integer", "minimum": 0, "default": 0})
    paths: dict[str, dict[str, Any]] = {
        "/": {"get": _operation("getLandingPage", {"200": _json("landingPage")})},
        "/api": {"get": _operation("getAPI", {"200": _any("This document.", API)})},
        "/conformance": {"get": _operation("getConformanceClasses", {"200": _json("confClasses")})},
        "/processes": {"get": _operation("getProcesses", {"200": _json("processList")}, _LIMIT, offset)},
        process: {"get": _operation("getProcessDescription", {"200": _json("process")}, _PROCESS_ID)},
        f"{process}/execution": {"post": _execution(results)},
        "/jobs": {"get": _operation("getJobs", {"200": _json("jobList")}, _LIMIT, *_FILTERS)},
        job: {
            "get": _operation("getStatus", {"200": status}, _JOB_ID),
            "delete": _operation("dismiss", {"200": status}, _JOB_ID),
        },
        f"{job}/results": {"get": _operation("getResult", results, _JOB_ID)},
    }
    return {
        "openapi": "3.0.3",
        "info": {"title": _TITLE, "version": __version__},
        "servers": [{"url": url(request, ROOT)}],
        "paths": paths,
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"key": []}],
    }


def _execution(results: dict[str, Any]) -> dict[str, Any]:
    """Return the OpenAPI description of the route that executes a process.

    ``results`` maps HTTP statuses to descriptions of the route's responses with results.
    """
    prefer = {"name": "Prefer", "in": "header", "schema": {"type": "string", "enum": ["respond-async", "respond-sync"]}}
    location = {"Location": {"schema": {"type": "string"}, "description": "URL of the job's status."}}
    created = {"201": {**_json("statusInfo"), "headers": location}}
    operation = _operation("execute", results | created, _PROCESS_ID, prefer)
    return operation | {"requestBody": {"required": True, "content": _content("execute")}}


def _operation(name: str, responses: dict[str, Any], *parameters: dict[str, Any]) -> dict[str, Any]:
    error = {"description": "An exception.", "content": _content("exception")}
    return {"operationId": name, "parameters": list(parameters), "responses": {**responses, "default": error}}


def _content(schema: str) -> dict[str, Any]:
    return {JSON: {"schema": {"$ref": f"{_SCHEMAS}/{schema}.yaml"}}}


def _json(schema: str) -> dict[str, Any]:
    return {"description": f"See {schema}.yaml.", "content": _content(schema)}


def _any(text: str, media_type: str = "*/*") -> dict[str, Any]:
    return {"description": text, "content": {media_type: {"schema": {}}}}


def _linked() -> dict[str, Any]:
    return {
        "description": "All results were asked for by reference.",
        "headers": {"Link": {"schema": {"type": "string"}, "description": "URLs of the results."}},
    }


def _query(name: str, schema: dict[str, Any], *, exploded: bool = True) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema} | (
        {} if exploded else {"style": "form", "explode": False}
    )


def _path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


_LIMIT: Final = _query("limit", {"type": "integer", "minimum": 1, "maximum": 1000, "default": 10})
_JOB_ID: Final = _path("jobID")
_PROCESS_ID: Final = _path("processID")
_WHOLE: Final = {"type": "integer", "minimum": 0}
_FILTERS: Final = (
    _query("type", {"type": "array", "items": {"type": "string", "enum": ["process"]}}, exploded=False),
    _query("processID", {"type": "array", "items": {"type": "string"}}, exploded=False),
    _query("status", {"type": "array", "items": {"type": "string", "enum": list(STATUSES)}}, exploded=False),
    _query("datetime", {"type": "string"}),
    _query("minDuration", _WHOLE),
    _query("maxDuration", _WHOLE),
    _query("after", {"type": "string"}),
)
"""OpenAPI descriptions of the query parameters that filter the list of jobs."""
