"""HTTP routes of map tiles. Their URLs begin with the URL of a stored result."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from vllm_mmout.messages import shown
from vllm_mmout.serving.errors import ApiError, error_response
from vllm_mmout.serving.extension import ServerExtension
from vllm_mmout.serving.image_routes import found_result, store_of
from vllm_mmout.serving.openapi import JSON, responses_of
from vllm_mmout.serving.response.responses import unless_gone
from vllm_mmout.wings.map_tiles.documents import capabilities, tilejson
from vllm_mmout.wings.map_tiles.map_layer import MapLayer, opened
from vllm_mmout.wings.map_tiles.web_mercator import SIDE, Tile

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.datastructures import State

    from vllm_mmout.serving.response.store import ResultStore
    from vllm_mmout.serving.service import Service

_AT_ONCE: Final = min(4, os.cpu_count() or 1)
"""Maximum number of tiles that are drawn at the same time. Each uses a CPU core, and up to 64 MiB in GDAL."""
_NUMBER: Final = re.compile(r"\d{1,9}", re.ASCII)
_FILE: Final = re.compile(r"(\d{1,9})(@2x)?\.png", re.ASCII)
_RESULT: Final = "/v1/images/results/{name}"


class TileRoutes(ServerExtension):
    """Server extension that adds the routes of map tiles, of TileJSON and of WMTS."""

    def attach(self, app: FastAPI) -> None:
        """Register the routes on the app."""
        for path, endpoint, parameters, media_type in (
            ("/tiles/{z}/{x}/{file}", tile, ("name", "z", "x", "file"), "image/png"),
            ("/tilejson.json", tilejson_of, ("name",), JSON),
            ("/wmts", wmts, ("name",), "application/xml"),
        ):
            described = {
                "parameters": [
                    {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
                    for name in parameters
                ],
                "responses": responses_of(
                    {"description": "The tile or document.", "content": {media_type: {"schema": {}}}}, 400, 401, 404
                ),
            }
            app.add_api_route(_RESULT + path, endpoint, methods=["GET"], tags=["map tiles"], openapi_extra=described)

    async def start(self, service: Service, state: State) -> None:
        """Create the semaphore that limits how many tiles are drawn at the same time."""
        del service
        state.mmout_tiles = asyncio.Semaphore(_AT_ONCE)


async def tile(request: Request) -> Response:
    """Send one tile of a stored result as PNG."""
    try:
        requested_tile = _requested_tile(request)
        store = store_of(request)
        # A result never changes, and its name is never used again.
        headers = {"Cache-Control": f"private, max-age={int(store.ttl)}, immutable", "ETag": f'"{_etag(request)}"'}
        path = await asyncio.to_thread(_path, store, request)
        if headers["ETag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        content = await _drawn(request, path, lambda layer: layer.tile(requested_tile))
        return Response(content, headers=headers, media_type="image/png")
    except Exception as error:  # noqa: BLE001 - each error is the answer to its own request
        return error_response(error)


async def tilejson_of(request: Request) -> Response:
    """Send the TileJSON document of a stored result. It tells web maps the URLs of the tiles."""
    return await _document(request, lambda layer, result: msgspec.json.encode(tilejson(layer, result)), JSON)


async def wmts(request: Request) -> Response:
    """Send the WMTS capabilities of a stored result. They tell QGIS and other programs the URLs of the tiles."""
    return await _document(request, capabilities, "application/xml")


async def _document(request: Request, document: Callable[[MapLayer, str], bytes], media_type: str) -> Response:
    try:
        path = await asyncio.to_thread(_path, store_of(request), request)
        result = str(request.url_for("mmout_result", name=path.name))
        content = await _drawn(request, path, lambda layer: document(layer, result))
        return Response(content, headers={"Cache-Control": "private, no-cache"}, media_type=media_type)
    except Exception as error:  # noqa: BLE001 - each error is the answer to its own request
        return error_response(error)


async def _drawn(request: Request, path: Path, draw: Callable[[MapLayer], bytes]) -> bytes:
    """Call ``draw`` with a result's map layer, in a thread. Skip the call if the client disconnects before."""

    def opened_and_drawn() -> bytes:
        with opened(path) as layer:
            return draw(layer)

    async def in_turn() -> bytes:
        async with request.app.state.mmout_tiles:
            return await asyncio.to_thread(opened_and_drawn)

    return await unless_gone(request, in_turn())


def _path(store: ResultStore, request: Request) -> Path:
    """Return the path of the GeoTIFF in the request's URL. Raise an ApiError if it is missing or not a GeoTIFF."""
    name = str(request.path_params["name"])
    with closing(found_result(store, name)) as entry:
        if entry.format != "tiff":
            raise ApiError(
                400,
                f"the result is {entry.media_type}, and map tiles are made of GeoTIFF; ask for output_format=tiff",
                param="name",
            )
    return store.folder / name


def _requested_tile(request: Request) -> Tile:
    """Return the tile in the request's URL. Raise an ApiError (400) if the URL is malformed."""
    zoom, column, file = (str(request.path_params[name]) for name in ("z", "x", "file"))
    match = _FILE.fullmatch(file)
    if match is None or not _NUMBER.fullmatch(zoom) or not _NUMBER.fullmatch(column):
        raise ApiError(
            400,
            f"a tile is Z/X/Y.png or Z/X/Y@2x.png with whole numbers, got {shown(f'{zoom}/{column}/{file}')}",
            param="file",
        )
    return Tile(int(zoom), int(column), int(match[1]), 2 * SIDE if match[2] else SIDE)


def _etag(request: Request) -> str:
    return "-".join(str(request.path_params[name]) for name in ("name", "z", "x", "file"))
