"""What our route answers for the IO Processor plugin ``mmout``: the same as vLLM's, within our limits and in pieces."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, TypeAdapter, ValidationError
from starlette.responses import JSONResponse
from vllm.entrypoints.pooling.base.protocol import reject_removed_pooling_parameters
from vllm.entrypoints.pooling.pooling.protocol import IOProcessorRequest

from vllm_mmout.messages import shown
from vllm_mmout.serving.errors import ApiError, api_error
from vllm_mmout.serving.extension import ServerExtension
from vllm_mmout.serving.request.fields import OPTIONS
from vllm_mmout.serving.request.names import request_id, trace_headers
from vllm_mmout.serving.response.responses import PiecesResponse
from vllm_mmout.serving.response.result_files import MEDIA_TYPES, Encoded
from vllm_mmout.serving.service import kept
from vllm_mmout.serving.work import Work
from vllm_mmout.wings.io_plugins.own.mmout_plugin import NAME, NamingPlugin
from vllm_mmout.wings.io_plugins.own.plugin_data import checked_input, plugin_data

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from vllm_mmout.serving.extension import PluginAnswer
    from vllm_mmout.serving.service import ForwardService
    from vllm_mmout.wings.io_plugins.own.plugin_data import PluginData

_REQUEST: TypeAdapter[IOProcessorRequest[Any]] = TypeAdapter(
    Annotated[IOProcessorRequest[Any], BeforeValidator(reject_removed_pooling_parameters)]
)


async def plugin_answer(request: Request, service: ForwardService, given: Mapping[str, Any]) -> Response:
    """Run a request and answer with its result: base64 that is made while it is sent, an address, or a file's path."""
    outer = _outer(given)
    asked = plugin_data(given["data"], served=service.options)
    if asked.target is not None and asked.data_format != "b64_json":
        asked.target.check_input(asked.data)
    asked.check(service.binding)
    name = request_id(request, "pooling")
    data = await asyncio.to_thread(checked_input, asked, service.options.max_upload)
    work = Work(
        service,
        data,
        asked.params,
        asked.asked,
        name,
        service.adapter(outer.model),
        "data",
        outer.priority,
        trace_headers(request),
    )
    (entry,) = (await work.result()).entries
    called = f"pooling-{request.headers.get('x-request-id') or outer.request_id}"  # as vLLM calls it
    head = {"request_id": called, "created_at": int(time.time())}
    if asked.out_data_format != "b64_json":
        place = await _placed(request, service, asked, entry)
        found = {"data_format": asked.out_data_format, "data": place, "request_id": called}
        return JSONResponse({**head, "data": found})
    start = json.dumps({**head, "data": {"data_format": asked.out_data_format, "data": ""}}, separators=(",", ":"))
    end = json.dumps({"request_id": called}, separators=(",", ":"))[1:]
    parts: list[bytes | Encoded] = [start.removesuffix('"}}').encode(), entry, f'",{end}}}'.encode()]
    return PiecesResponse(parts, MEDIA_TYPES["json"], as_text=True)


async def _placed(request: Request, service: ForwardService, asked: PluginData, entry: Encoded) -> str:
    """Store a result, or write it where the request says, and return its address or path."""
    if asked.target is None:
        (name,) = await kept(service.store, [entry])
        return str(request.url_for("mmout_result", name=name))
    try:
        return str(await asyncio.to_thread(asked.target.write, entry))
    finally:
        entry.close()


def _outer(given: Mapping[str, Any]) -> IOProcessorRequest[Any]:
    """What stands beside ``data``, as vLLM's route takes it: what it does not know is nothing to it."""
    for name in given:
        if name in OPTIONS:
            raise ApiError(400, f"{name} stands beside data, and is to stand in it", param=name)
    try:
        return _REQUEST.validate_python({**given, "data": None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        wrong = ".".join(map(str, first["loc"]))
        raise ApiError(400, f"{wrong}: {first['msg']}, got {shown(first['input'])}", param=wrong) from None
    except ValueError as error:  # of a field that vLLM once had
        raise api_error(error) from None


class PluginRoutes(ServerExtension):
    """Answers what the plugin takes."""

    def plugin_answer(self, plugin: Any) -> PluginAnswer | None:
        """Our own for our own plugin."""
        return plugin_answer if isinstance(plugin, NamingPlugin) else None

    def needed_plugins(self, args: Namespace) -> Sequence[str]:
        """Our plugin, where the arguments name it."""
        return [NAME] if getattr(args, "io_processor_plugin", None) == NAME else []
