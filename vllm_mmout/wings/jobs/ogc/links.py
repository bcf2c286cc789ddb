"""Build the links and URLs in documents of OGC API Processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlencode

if TYPE_CHECKING:
    from starlette.requests import Request

    from vllm_mmout.wings.jobs.server.job import SceneJob, SceneOutput

ROOT: Final = "/ogc"
JSON: Final = "application/json"
API: Final = "application/vnd.oai.openapi+json;version=3.0"
"""Media type of an API definition in OpenAPI 3.0."""
_REL: Final = "http://www.opengis.net/def/rel/ogc/1.0"
RESULTS: Final = f"{_REL}/results"
EXCEPTIONS: Final = f"{_REL}/exceptions"
EXECUTE: Final = f"{_REL}/execute"
PROCESSES: Final = f"{_REL}/processes"
JOBS: Final = f"{_REL}/job-list"
CONFORMANCE: Final = f"{_REL}/conformance"


def url(request: Request, path: str, **query: str | int) -> str:
    """Return the absolute URL of a path on this server, as the client sees the server."""
    base = str(request.base_url).rstrip("/")
    return f"{base}{path}?{urlencode(query)}" if query else f"{base}{path}"


def link(href: str, rel: str, title: str = "", media_type: str = JSON) -> dict[str, str]:
    """Return a link object."""
    return {"href": href, "rel": rel, "type": media_type, **({"title": title} if title else {})}


def job_url(request: Request, job: SceneJob) -> str:
    """Return the URL of a job's status, for clients."""
    return url(request, f"{ROOT}/jobs/{job.id}")


def output_url(request: Request, job: SceneJob, output: SceneOutput) -> str:
    """Return the URL from which clients download a result file. The URL accepts range requests."""
    return url(request, f"/v1/scenes/{job.id}/content", **output.query)


def header(href: str, rel: str, **attributes: str) -> str:
    """Format a link as the value of an HTTP header ``Link`` (RFC 8288)."""
    more = "".join(f'; {name}="{quote(text, safe=" /;=.,:+")}"' for name, text in attributes.items())
    return f'<{href}>; rel="{rel}"{more}'
