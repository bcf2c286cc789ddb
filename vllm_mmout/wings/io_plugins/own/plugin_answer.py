"""Answer HTTP requests to the IO Processor plugin ``mmout``, in vLLM's response format."""

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
from vllm_mmout.serving.request.fields import OPTIONS, ImageRequest
from vllm_mmout.serving.request.request_ids import request_id, trace_headers
from vllm_mmout.serving.response.responses import parts_response
from vllm_mmout.serving.response.result_files import MEDIA_TYPES, Encoded
from vllm_mmout.serving.response.store import kept
from vllm_mmout.serving.work import Work
from vllm_mmout.wings.io_plugins.own.mmout_plugin import NAME, MMOutPlugin
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


async def plugin_answer(request: Request, service: ForwardService, body: Mapping[str, Any]) -> Response:
    """Run a request to the plugin. The response holds the result as base64, its URL, or the path of its file."""
    outer = _check_outer_fields(body)
    plugin_request = plugin_data(body["data"], served=service.options)
    if plugin_request.target is not None and plugin_request.data_format != "b64_json":
        plugin_request.target.check_input(plugin_request.data)
    plugin_request.check(service.binding)
    name = request_id(request, "pooling")
    data = await asyncio.to_thread(checked_input, plugin_request, service.options.max_upload)
    fields = ImageRequest(output_format=plugin_request.image_format, as_file=True, options=plugin_request.params)
    adapter, headers = service.adapter(outer.model), trace_headers(request)
    work = Work(service, fields, data, name, adapter, "data", outer.priority, headers)
    work.check_limits()
    (entry,) = await work.encoded(await work.last())
    vllm_id = f"pooling-{request.headers.get('x-request-id') or outer.request_id}"  # the id that vLLM would use
    head = {"request_id": vllm_id, "created_at": int(time.time())}
    if plugin_request.out_data_format != "b64_json":
        location = await _store_result(request, service, plugin_request, entry)
        data_field = {"data_format": plugin_request.out_data_format, "data": location, "request_id": vllm_id}
        return JSONResponse({**head, "data": data_field})
    start = json.dumps(
        {**head, "data": {"data_format": plugin_request.out_data_format, "data": ""}}, separators=(",", ":")
    )
    end = json.dumps({"request_id": vllm_id}, separators=(",", ":"))[1:]
    parts: list[bytes | Encoded] = [start.removesuffix('"}}').encode(), entry, f'",{end}}}'.encode()]
    return parts_response(parts, MEDIA_TYPES["json"], as_text=True)


async def _store_result(request: Request, service: ForwardService, plugin_request: PluginData, entry: Encoded) -> str:
    """Store a result on the server. Return the result's path if the client asked for a file, else the result's URL."""
    if plugin_request.target is None:
        (name,) = await kept(service.store, [entry])
        return str(request.url_for("mmout_result", name=name))
    try:
        return str(await asyncio.to_thread(plugin_request.target.write, entry))
    finally:
        entry.close()


def _check_outer_fields(body: Mapping[str, Any]) -> IOProcessorRequest[Any]:
    """Parse the request body without its field ``data``. Raise ApiError for options that belong inside ``data``.

    Unknown fields are ignored.
    """
    for name in body:
        if name in OPTIONS:
            raise ApiError(400, f"{name} must be inside data, not beside it", param=name)
    try:
        return _REQUEST.validate_python({**body, "data": None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        wrong = ".".join(map(str, first["loc"]))
        raise ApiError(400, f"{wrong}: {first['msg']}, got {shown(first['input'])}", param=wrong) from None
    except ValueError as error:  # for fields that vLLM has removed
        raise api_error(error) from None


class PluginRoutes(ServerExtension):
    """Server extension that answers requests to the IO Processor plugin ``mmout``."""

    def plugin_answer(self, plugin: Any) -> PluginAnswer | None:
        """Return the handler of requests to the plugin ``mmout``, or None for any other plugin."""
        return plugin_answer if isinstance(plugin, MMOutPlugin) else None

    def needed_plugins(self, args: Namespace) -> Sequence[str]:
        """Return ``["mmout"]`` if the server's arguments select the IO Processor plugin ``mmout``, else []."""
        return [NAME] if getattr(args, "io_processor_plugin", None) == NAME else []
