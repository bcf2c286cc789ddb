"""HTTP routes that describe the results on a server as STAC items, and as a STAC collection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from vllm_mmout.errors import InputError
from vllm_mmout.serving.errors import ApiError, error_response
from vllm_mmout.serving.extension import ServerExtension
from vllm_mmout.serving.openapi import JSON, responses_of
from vllm_mmout.serving.response.responses import unless_gone
from vllm_mmout.serving.result_addresses import absolute_url, result_addresses
from vllm_mmout.wings.stac.served_items import COLLECTION, ITEM_END, served_collection, served_item

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.datastructures import State

    from vllm_mmout.serving.result_addresses import FinishedResult
    from vllm_mmout.serving.service import Service

Work: TypeAlias = Callable[[Request], Awaitable[Response]]
_MAX_RESULTS: Final = 1000
"""Maximum number of results in the STAC collection of a server. The newest results are listed."""
_GEOJSON: Final = "application/geo+json"


class ItemRoutes(ServerExtension):
    """Server extension that serves a STAC item for each stored result, and a STAC collection of all results."""

    def attach(self, app: FastAPI) -> None:
        """Add the routes of the STAC items and of the STAC collection to the server's FastAPI app."""
        addresses = result_addresses()
        for address in addresses:
            if address.finished is None:
                continue
            names = [part[1:-1] for part in address.path.split("/") if part.startswith("{")]
            parameters = [_parameter(name, "path") for name in names] + [
                _parameter(name, "query") for name in address.query
            ]
            _add(app, address.path + ITEM_END, partial(_item, address.finished), _GEOJSON, parameters)
        lists = [address.newest for address in addresses if address.newest is not None]
        if lists:
            _add(app, COLLECTION, partial(_collection, lists), JSON, [])

    async def start(self, service: Service, state: State) -> None:
        """Create the lock that lets the server make only one STAC document at a time.

        To make an item, the server reads a whole file for its checksum.
        """
        del service
        state.mmout_stac = asyncio.Lock()


def _parameter(name: str, place: str) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "schema": {"type": "string", "minLength": 1}}


def _add(app: FastAPI, path: str, work: Work, media_type: str, parameters: list[dict[str, Any]]) -> None:
    async def stac(request: Request) -> Response:
        """Send the STAC document of this route: the item of one result, or the collection of the newest results."""
        try:
            return await work(request)
        except Exception as error:  # noqa: BLE001 - each error is the answer to its own request
            return error_response(error)

    content = {"description": "The document.", "content": {media_type: {"schema": {}}}}
    described = {"parameters": parameters, "responses": responses_of(content, 400, 401, 404, 409)}
    app.add_api_route(path, stac, methods=["GET"], tags=["STAC"], openapi_extra=described)


async def _item(find: Callable[[Request], Awaitable[FinishedResult]], request: Request) -> Response:
    """Send the STAC item of a result."""
    result = await find(request)

    def content() -> dict[str, Any]:
        try:
            return served_item(result, partial(absolute_url, request)).to_dict(transform_hrefs=False)
        except InputError as error:
            raise ApiError(404, "the result was removed; send the scene again") from error

    return await _sent(request, content, _GEOJSON)


async def _collection(
    lists: Sequence[Callable[[Request, int], Awaitable[Sequence[FinishedResult]]]], request: Request
) -> Response:
    """Send a STAC collection of the server's newest results.

    ``lists`` holds the functions `ResultAddress.newest`, one for each URL path of results.
    """
    results = [result for newest in lists for result in await newest(request, _MAX_RESULTS)]

    def content() -> dict[str, Any]:
        made = served_collection(results, partial(absolute_url, request))
        if made is None:
            raise ApiError(404, "no finished job has a GeoTIFF with a place on Earth yet; send a scene")
        return made

    return await _sent(request, content, JSON)


async def _sent(request: Request, content: Callable[[], dict[str, Any]], media_type: str) -> Response:
    """Send the STAC document that the function ``content`` returns, as JSON.

    ``content`` runs in a thread. The server computes only one document at a time.
    """

    async def in_turn() -> bytes:
        async with request.app.state.mmout_stac:
            return msgspec.json.encode(await asyncio.to_thread(content))

    body = await unless_gone(request, in_turn())
    return Response(body, headers={"Cache-Control": "private, no-cache"}, media_type=media_type)
