"""Addresses of results on the server, below which extension packages serve other forms of them, such as map tiles."""

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
    """GeoTIFF of a result on the server, or of a picture of a growing result."""

    path: Path
    growing: bool = False
    """True for a picture of a result whose tiles are not all joined yet. Newer pictures replace it, and it is deleted
    when the result is complete."""
    ttl: float = 0.0
    """Number of seconds that the server keeps the result."""

    @property
    def name(self) -> str:
        """Name of the content of a complete result. It never names other content."""
        return self.path.name


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedResult:
    """Complete result on the server, with the paths of its URLs."""

    id: str
    title: str
    """Client's name for the input, such as "scene.tif"."""
    file: ResultFile
    address: str
    """Path of the result's address, such as "/v1/scenes/scene_x"."""
    query: str = ""
    """Query that chooses the result among several at the address, such as "processor=classes"."""
    preview: str | None
    """Path and query of the preview as PNG, or None if the server has none."""

    def below(self, end: str) -> str:
        """Return the path and query of the URL ``end`` below the result's address."""
        return f"{self.address}{end}{'?' * bool(self.query)}{self.query}"


class _Find(Protocol):
    def __call__(self, request: Request, *, growing: bool = False) -> Awaitable[ResultFile]: ...


@dataclass(frozen=True, slots=True)
class ResultAddress:
    """Address of results on the server. An extension package adds its own by the field ``results`` of its `Wing`."""

    path: str
    """Path of the URLs with parameters in braces, such as "/v1/scenes/{scene_id}"."""
    find: _Find
    """Function that returns the GeoTIFF that a request's path and query name. With ``growing`` it may return the
    picture of a result that is not complete. It raises ApiError if the result is missing or has another format."""
    query: Sequence[str] = ()
    """Names of the query parameters that choose one of several results."""
    finished: Callable[[Request], Awaitable[FinishedResult]] | None = None
    """Function that returns the complete result that a request's path and query name, whose content is sent at
    ``/content`` below the address. None if the server does not list the results."""
    newest: Callable[[Request, int], Awaitable[Sequence[FinishedResult]]] | None = None
    """Function that returns the complete results, newest first, up to a number of them, or None like ``finished``."""

    def url(self, request: Request, end: str) -> str:
        """Return the URL ``end`` below the result that ``request`` names, with its query parameters for a result."""
        chosen = {name: request.query_params[name] for name in self.query if name in request.query_params}
        place = absolute_url(request, self.path.format(**request.path_params)) + end
        return f"{place}?{urlencode(chosen)}" if chosen else place


def absolute_url(request: Request, path: str) -> str:
    """Return the URL of a path on the server, with the host of the client's request."""
    return str(request.base_url).rstrip("/") + path


async def _stored(request: Request, *, growing: bool = False) -> ResultFile:
    """Return the GeoTIFF among the stored results that a request's path names."""
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
    """Return the address of stored results and the addresses that extension packages add."""
    return (STORED, *extensions("results"))
