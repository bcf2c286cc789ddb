"""URL paths of results. Extension packages add routes below these URL paths, such as routes for map tiles."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import urlencode

from anyio.to_thread import run_sync

from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.image_routes import found_result, store_of
from vllm_mmout.wing import extensions

if TYPE_CHECKING:
    from starlette.requests import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFile:
    """GeoTIFF file of a result on the server, or a preview of a result that is still being computed."""

    path: Path
    growing: bool = False
    """True if the file is a preview of a result whose tiles are not all joined yet. Newer previews replace it, and it
    is deleted when the result is complete."""
    ttl: float = 0.0
    """Number of seconds that the server keeps the result."""

    @property
    def name(self) -> str:
        """File name of the result. The name of a complete result is never reused for other content."""
        return self.path.name


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedResult:
    """Complete result on the server, with the paths of its URLs."""

    id: str
    title: str
    """Client's name for the input, such as "scene.tif", or the day of a map if the job makes a map of each day."""
    file: ResultFile
    address: str
    """Path of the result's URL, such as "/v1/scenes/scene_x"."""
    query: str = ""
    """URL query that chooses this result, such as "processor=classes", if several results have the same path."""
    preview: str | None
    """Path and query of the URL of the result's preview, a PNG. None if a preview is not available."""

    def below(self, end: str) -> str:
        """Return path and query of the result's URL, with ``end``, such as "/content", added to the path."""
        return f"{self.address}{end}{'?' * bool(self.query)}{self.query}"


class _Find(Protocol):
    def __call__(self, request: Request, *, growing: bool = False) -> Awaitable[ResultFile]: ...


@dataclass(frozen=True, slots=True)
class ResultAddress:
    """URL path of results on the server, with functions that find the results.

    Extension packages can add such objects. The field `Wing.results` holds the import path of the added object.
    """

    path: str
    """URL path with parameters in braces, such as "/v1/scenes/{scene_id}"."""
    find: _Find
    """Function that returns the GeoTIFF at the URL of a request. The function raises ApiError if the result is missing
    or is not a GeoTIFF.

    With ``growing=True`` the function may return a preview of a result that is still being computed.
    """
    query: Sequence[str] = ()
    """Names of the query parameters that choose one of several results with the same path."""
    finished: Callable[[Request], Awaitable[FinishedResult]] | None = None
    """Function that returns the complete result at the URL of a request, to describe the result in a STAC item. None if
    the results cannot have STAC items.

    The server must send the result's file at `path` plus ``/content``.
    """
    newest: Callable[[Request, int], Awaitable[Sequence[FinishedResult]]] | None = None
    """Function ``(request, count)`` that returns up to ``count`` complete results, the newest first. None if the server
    cannot list the results."""

    def url(self, request: Request, end: str) -> str:
        """Return the URL of the result that ``request`` names. ``end``, such as "/content", is added to the path.

        Query parameters of the request that choose the result are kept.
        """
        chosen = {name: request.query_params[name] for name in self.query if name in request.query_params}
        place = absolute_url(request, self.path.format(**request.path_params)) + end
        return f"{place}?{urlencode(chosen)}" if chosen else place


def absolute_url(request: Request, path: str) -> str:
    """Return the URL of a path on the server, with the host of the client's request."""
    return str(request.base_url).rstrip("/") + path


async def _stored(request: Request, *, growing: bool = False) -> ResultFile:
    """Return the stored result whose name is in the request's path.

    Raise an ApiError if the result is missing or is not a GeoTIFF.
    """
    del growing
    store, name = store_of(request), str(request.path_params["name"])

    def media_type() -> str:
        with closing(found_result(store, name)) as entry:
            return entry.media_type

    return geotiff_only(await run_sync(media_type), ResultFile(path=store.folder / name, ttl=store.ttl), "name")


def geotiff_only(media_type: str, file: ResultFile, param: str) -> ResultFile:
    """Return ``file``. Raise an ApiError (400) if ``media_type`` is not the media type of a GeoTIFF."""
    if media_type != "image/tiff":
        raise ApiError(
            400,
            f"the result is {media_type}, and map tiles and STAC items are made of GeoTIFF; ask for output_format=tiff",
            param=param,
        )
    return file


STORED: Final = ResultAddress("/v1/images/results/{name}", _stored)


def result_addresses() -> tuple[ResultAddress, ...]:
    """Return all `ResultAddress` objects: `STORED` first, then the objects that extension packages define."""
    return (STORED, *extensions("results"))
