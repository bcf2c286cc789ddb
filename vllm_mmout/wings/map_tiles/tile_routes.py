"""HTTP routes of map tiles. Their URLs begin with the address of a result."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from vllm_mmout.errors import InputError
from vllm_mmout.messages import shown
from vllm_mmout.serving.errors import ApiError, error_response
from vllm_mmout.serving.extension import ServerExtension
from vllm_mmout.serving.openapi import JSON, responses_of
from vllm_mmout.serving.response.responses import unless_gone
from vllm_mmout.serving.result_addresses import result_addresses
from vllm_mmout.wings.map_tiles.documents import capabilities, tilejson
from vllm_mmout.wings.map_tiles.map_layer import MapLayer, opened
from vllm_mmout.wings.map_tiles.web_mercator import SIDE, Tile

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.datastructures import State

    from vllm_mmout.serving.result_addresses import ResultAddress, ResultFile
    from vllm_mmout.serving.service import Service

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]
_AT_ONCE: Final = min(4, os.cpu_count() or 1)
"""Maximum number of tiles that are drawn at once. Drawing a tile uses a CPU core and up to 64 MiB of memory."""
_NUMBER: Final = re.compile(r"\d{1,9}", re.ASCII)
_FILE: Final = re.compile(r"(\d{1,9})(@2x)?\.png", re.ASCII)
_XML: Final = "application/xml"
_GROWING: Final = {"Cache-Control": "no-store"}
"""Response headers of map tiles of a result that is still being computed. Clients must not cache them."""


class TileRoutes(ServerExtension):
    """Server extension that adds the routes of map tiles, TileJSON and WMTS for the results on the server.

    The URL path of each route begins with the URL path of a result, such as ``/v1/scenes/{scene_id}``.
    """

    def attach(self, app: FastAPI) -> None:
        """Register the routes on the app."""
        for address in result_addresses():
            for path, endpoint, media_type in (
                ("/tiles/{z}/{x}/{file}", _tile_endpoint(address), "image/png"),
                ("/tilejson.json", _document_endpoint(address, _tilejson, JSON), JSON),
                ("/wmts", _document_endpoint(address, capabilities, _XML), _XML),
            ):
                whole = address.path + path
                names = re.findall(r"{(\w+)}", whole)
                described = {
                    "parameters": [
                        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
                        for name in names
                    ]
                    + [{"name": name, "in": "query", "schema": {"type": "string"}} for name in address.query],
                    "responses": responses_of(
                        {"description": "The tile or document.", "content": {media_type: {"schema": {}}}},
                        *(400, 401, 404, 409),
                    ),
                }
                app.add_api_route(whole, endpoint, methods=["GET"], tags=["map tiles"], openapi_extra=described)

    async def start(self, service: Service, state: State) -> None:
        """Set up the map tile routes when the server starts. A semaphore limits how many tiles are drawn at once."""
        del service
        state.mmout_tiles = asyncio.Semaphore(_AT_ONCE)


def _tile_endpoint(address: ResultAddress) -> Endpoint:
    async def tile(request: Request) -> Response:
        """Send a map tile of a result as PNG. While the result is being computed, tiles show the finished parts."""
        try:
            requested_tile = _requested_tile(request)
            file = await address.find(request, growing=True)
            headers = _GROWING
            if not file.growing:
                # A stored result never changes, and its name is never used again.
                etag = f'"{_etag(request, file)}"'
                headers = {"Cache-Control": f"private, max-age={int(file.ttl)}, immutable", "ETag": etag}
                if etag in request.headers.get("if-none-match", ""):
                    return Response(status_code=304, headers=headers)
            content = await _drawn(request, file, lambda layer: layer.tile(requested_tile))
            return Response(content, headers=headers, media_type="image/png")
        except Exception as error:  # noqa: BLE001 - each error is the answer to its own request
            return error_response(error)

    return tile


def _document_endpoint(address: ResultAddress, document: Callable[[MapLayer, str], bytes], media_type: str) -> Endpoint:
    async def send_document(request: Request) -> Response:
        """Send a TileJSON or WMTS document, which tells web maps and QGIS the URLs of a result's map tiles."""
        try:
            file = await address.find(request, growing=True)
            template = address.url(request, "/tiles/{z}/{x}/{y}.png")
            content = await _drawn(request, file, lambda layer: document(layer, template))
            headers = _GROWING if file.growing else {"Cache-Control": "private, no-cache"}
            return Response(content, headers=headers, media_type=media_type)
        except Exception as error:  # noqa: BLE001 - each error is the answer to its own request
            return error_response(error)

    return send_document


def _tilejson(layer: MapLayer, template: str) -> bytes:
    return msgspec.json.encode(tilejson(layer, template))


async def _drawn(request: Request, file: ResultFile, draw: Callable[[MapLayer], bytes]) -> bytes:
    """Open a result file as a `MapLayer`, call ``draw`` with the layer, and return the bytes from ``draw``.

    Raise ClientDisconnect if the client disconnects first.
    """

    def opened_and_drawn() -> bytes:
        try:
            with opened(file.path, growing=file.growing) as layer:
                return draw(layer)
        except InputError as error:
            if file.growing and not file.path.exists():
                message = "the job has just ended; ask again"
                raise ApiError(409, message, headers={"Retry-After": "1"}) from error
            raise

    async def in_turn() -> bytes:
        async with request.app.state.mmout_tiles:
            return await asyncio.to_thread(opened_and_drawn)

    return await unless_gone(request, in_turn())


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


def _etag(request: Request, file: ResultFile) -> str:
    return "-".join([file.name, *(str(request.path_params[name]) for name in ("z", "x", "file"))])
