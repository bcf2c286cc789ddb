"""Read and check the body of a request to execute a process (OGC's schema ``execute.yaml``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec

from vllm_mmout.messages import shown, unknown
from vllm_mmout.serving.errors import ApiError, api_error
from vllm_mmout.serving.request.body import MAX_TEXT, is_json, parsed, read_body, unsupported
from vllm_mmout.serving.request.fields import request_of
from vllm_mmout.serving.request.json_body import OF_IMAGES, decoded_fields, several
from vllm_mmout.wings.jobs.ogc.processes import BBOX, CRS84, IMAGE, inputs_of
from vllm_mmout.wings.jobs.server.job import Delivery

if TYPE_CHECKING:
    from starlette.requests import Request

    from vllm_mmout.serving.options import ServingOptions
    from vllm_mmout.serving.request.fields import ImageRequest
    from vllm_mmout.wings.jobs.ogc.processes import Process

_HOW: Final = 'send {"href": "https://..."}, or the file in base64'
_MEMBERS: Final = ("inputs", "outputs", "response")
_WRAPPER_KEYS: Final = frozenset({"value", "mediaType", "encoding", "schema"})
"""Keys of a JSON object that wraps an input's value, as in OGC's schema ``qualifiedInputValue.yaml``."""


class _Format(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Requested file format of an output, in the form of OGC's schema ``format.yaml``."""

    media_type: str | None = None
    encoding: str | None = None
    schema: Any = None


class _Output(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Requested format of an output, and whether to send it by value or by URL (OGC's schema ``output.yaml``)."""

    format: _Format | None = None
    transmission_mode: Literal["value", "reference"] = "value"


class _File(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Input file in a JSON request: a link (OGC's schema ``link.yaml``), or base64 (``qualifiedInputValue.yaml``)."""

    href: str | None = None
    value: str | None = None
    encoding: Literal["base64"] | None = None
    media_type: str | None = None
    schema: Any = None
    type: str | None = None
    rel: str | None = None
    hreflang: str | None = None
    title: str | None = None


class _BBox(msgspec.Struct, forbid_unknown_fields=True):
    """Bounding box in a request, in the form of OGC's schema ``bbox.yaml``."""

    bbox: tuple[float, float, float, float]
    crs: Annotated[str, msgspec.Meta(pattern=f"^{CRS84}$")] = CRS84


@dataclass(frozen=True, slots=True)
class ExecuteRequest:
    """Parsed request to execute a process. It is checked as far as possible without running the model."""

    image_request: ImageRequest
    delivery: Delivery


async def read_execute_request(request: Request, options: ServingOptions, process: Process) -> ExecuteRequest:
    """Read the body of an execute request, and check it against the inputs and outputs of ``process``."""
    if not is_json(request):
        raise await unsupported(request, "application/json")
    body = await parsed(_decoded, await read_body(request, options, MAX_TEXT))
    if not isinstance(body, Mapping):
        raise ApiError(400, f"the body must be a JSON object, got {shown(body)}")
    if "subscriber" in body:
        message = "subscriber: this server does not call clients; leave it out, and poll the job"
        raise ApiError(400, message, param="subscriber")
    for name in body:
        if name not in _MEMBERS:
            raise api_error(unknown(name, _MEMBERS, kind="member of an execute request"))
    outputs = _outputs(body.get("outputs"), process)
    values = _fields(_object(body.get("inputs"), "inputs"))
    images = values.pop(IMAGE)
    chosen = inputs_of(process).of_object(values)
    chosen |= {"model": process.model, **_format(outputs, process)}
    chosen["processor"] = tuple(outputs) if len(outputs) > 1 else next(iter(outputs))
    delivery = _delivery(body.get("response", "raw"), outputs, chosen.get("output"))
    return ExecuteRequest(request_of(chosen, images), delivery)


def _decoded(body: bytearray) -> Any:
    """Parse the JSON body of an execute request. Raise an error if a value in the body is too long.

    Files, an ``aoi`` and a prompt in ``inputs`` have limits of their own. Any other value may have at most 8 KB.
    """

    def inputs(_: str, raw: memoryview) -> Any:
        return decoded_fields(raw, {**OF_IMAGES, IMAGE: partial(several, one=_file)})

    return decoded_fields(body, {"inputs": inputs})


def _file(name: str, raw: memoryview) -> str:
    """Parse the JSON value that describes an input file. Return the file's URL, or a data URL with its content.

    The JSON value is a string in base64, or an object like `_File`.
    """
    try:
        value = msgspec.json.decode(raw, type=str | _File)
    except msgspec.ValidationError as error:
        raise ApiError(400, f"{name} is no file: {error}; {_HOW}", param=name) from None
    file = _File(value=value) if isinstance(value, str) else value
    if (file.href is None) == (file.value is None):
        both = "both href and value" if file.href is not None else "neither href nor value"
        raise ApiError(400, f"{name} has {both}; {_HOW}", param=name)
    if file.value is None:
        return file.href or ""
    if ":" in file.value[:100]:
        raise ApiError(400, f"{name} must be base64, got {shown(file.value)}; {_HOW}", param=name)
    return f"data:;base64,{file.value}"


def _object(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping | None):
        raise ApiError(400, f"{name} must be a JSON object, got {shown(value)}", param=name)
    return value or {}


def _fields(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the inputs of an OGC process to the fields of this server's image requests."""
    images = inputs.get(IMAGE)
    if not images:
        raise ApiError(400, f"inputs has no {IMAGE}; {_HOW}", param=IMAGE)
    values = {name: _unwrapped(name, value) for name, value in inputs.items() if name != IMAGE}
    if isinstance(values.get(BBOX), Mapping):
        if values.get("bbox_crs") is not None:
            message = f"bbox has a crs of its own, and bbox_crs is {shown(values['bbox_crs'])}; send one of them"
            raise ApiError(400, message, param=BBOX)
        box: _BBox = _converted(values[BBOX], _BBox, BBOX)
        values |= {BBOX: list(box.bbox), "bbox_crs": box.crs}
    return values | {IMAGE: tuple(images) if isinstance(images, list) else (images,)}


def _unwrapped(name: str, value: Any) -> Any:
    """Return an input's value. It may be wrapped in a JSON object together with a media type or schema."""
    if not isinstance(value, Mapping):
        return value
    if "href" in value:
        raise ApiError(400, f"{name} is sent by reference; send its value", param=name)
    return value["value"] if "value" in value and value.keys() <= _WRAPPER_KEYS else value


def _outputs(value: Any, process: Process) -> dict[str, _Output]:
    """Return the requested outputs by processor name. Return all outputs of the process if none is requested."""
    outputs: dict[str, _Output] = _converted(_object(value, "outputs"), dict[str, _Output], "outputs")
    for name in outputs:
        if name not in process.outputs:
            raise api_error(unknown(name, process.outputs, kind="output"))
    return outputs or dict.fromkeys(process.outputs, _Output())


def _format(outputs: Mapping[str, _Output], process: Process) -> dict[str, str]:
    """Return {"output_format": name} with the requested file format, or {} if the request sets no format.

    All outputs of a request must have one format.
    """
    chosen: dict[str, str | None] = {}
    for name, output in outputs.items():
        asked = output.format or _Format()
        if asked.schema is not None or asked.encoding not in (None, "base64"):
            message = f"output {name!r} asks for a schema or an encoding; only its mediaType can be chosen"
            raise ApiError(400, message, param="outputs")
        known = process.formats(name)
        plain = (asked.media_type or "").partition(";")[0].strip().lower()
        if plain and plain not in known:
            message = f"output {name!r} cannot be {shown(asked.media_type)}; it can be {', '.join(known)}"
            raise ApiError(400, message, param="outputs")
        chosen[name] = known[plain] if plain else None
    if len(set(chosen.values())) > 1:
        named = ", ".join(f"{name}: {form or 'its usual format'}" for name, form in chosen.items())
        message = f"the outputs of one request have one format, but it asks for {named}; send a request for each"
        raise ApiError(400, message, param="outputs")
    form = next(iter(chosen.values()))
    return {} if form is None else {"output_format": form}


def _delivery(response: Any, outputs: Mapping[str, _Output], kinds: Any) -> Delivery:
    """Return whether to send the results as one JSON document, and which results to send as URLs.

    ``kinds`` is the request's input ``output``: the name of a kind of result, a list of such names, or None. A request
    for several kinds has one processor, whose results are named by their kinds.
    """
    if response not in ("raw", "document"):
        raise ApiError(400, f"response must be raw or document, got {shown(response)}", param="response")
    references = tuple(name for name, output in outputs.items() if output.transmission_mode == "reference")
    if references and isinstance(kinds, Sequence) and not isinstance(kinds, str):
        references = tuple(kinds)
    return Delivery(document=response == "document", references=references)


def _converted(value: Any, kind: Any, name: str) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ApiError(400, f"{name} is wrong: {error}", param=name) from None
