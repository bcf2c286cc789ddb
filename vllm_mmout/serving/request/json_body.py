"""Decode JSON bodies field by field, with a size limit for each field, because decoding holds the GIL."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from vllm_mmout.messages import shown
from vllm_mmout.params import OPTIONS
from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.request.body import (
    MAX_FIELDS,
    MAX_FILES,
    MAX_TEXT,
    is_json,
    parsed,
    read_body,
    read_form,
    too_much_text,
    unsupported,
)

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from starlette.requests import Request

    from vllm_mmout.serving.inputs.uploads import ReceivedForm
    from vllm_mmout.serving.options import ServingOptions


async def read_request(
    request: Request, options: ServingOptions, held: AsyncExitStack, *, json: bool = True
) -> ReceivedForm | Any:
    """Read a form or a JSON body, depending on ``Content-Type``. The exit stack ``held`` closes the form.

    With ``json`` False a body of JSON is refused.
    """
    if json and is_json(request):
        return await read_json(request, options)
    form = await read_form(request, options)
    held.push_async_callback(_close, form)
    return form


async def _close(form: ReceivedForm) -> None:
    await asyncio.shield(asyncio.to_thread(form.close))


async def read_json(request: Request, options: ServingOptions) -> Any:
    """Read and parse a request's JSON body. Images and the prompt have higher size limits than other fields."""
    if not is_json(request):
        raise await unsupported(request, "application/json")
    return await parsed(partial(decoded, data=False), await read_body(request, options, MAX_TEXT))


async def parse_json(body: bytearray) -> Any:
    """Parse a JSON body whose field ``data`` may hold any JSON. A large body is parsed in a thread."""
    if len(body) > MAX_TEXT:
        raise too_much_text()
    return await parsed(partial(decoded, data=True), body)


Decode: TypeAlias = Callable[[str, memoryview], Any]
"""Function ``(name, JSON)`` that decodes the value of a field. The field's name is for error messages."""
_OBJECT: Final = re.compile(rb"[ \t\n\r]*\{")
_LONGEST: Final = 8192
"""Maximum JSON size in bytes of a field without a special limit."""
_LONG: Final = 1 << 19
"""Maximum JSON size in bytes of a prompt or a list of tokens, before escape sequences are decoded."""
_CONTAINERS: Final = 1 << 21
"""Maximum number of lists and objects in ``data``. An empty list takes 2 bytes as JSON, but about 100 in memory."""


def decoded(body: bytearray, *, data: bool) -> Any:
    """Parse a JSON body. Raise ApiError if a field has more than 8 KB, except for a few fields with higher limits.

    If ``data`` is True, only the field "data" has a higher limit, and may hold any JSON. If ``data`` is False, the
    fields of `OF_IMAGES` have higher limits, such as images and the prompt.
    """
    return decoded_fields(body, _OF_DATA if data else OF_IMAGES)


def decoded_fields(body: bytearray | memoryview, fields: Mapping[str, Decode]) -> Any:
    """Parse a JSON object with values of at most 8 KB each. Only fields in ``fields`` may have longer values.

    ``fields`` maps the name of such a field to a function that decodes the value and sets its own limit. The limits
    keep the blocking call short. A body that is not an object may have 8 KB too.
    """
    try:
        if not is_object(body):
            if len(body) > _LONGEST:
                raise ApiError(400, f"the body must be a JSON object, got {_begin(body)}")
            return msgspec.json.decode(body)
        # Decode only the outermost names first, so that each value's length is checked before it is decoded.
        names = msgspec.json.decode(body, type=dict[_Name, msgspec.Raw], dec_hook=_Names().next)
        values: dict[str, Any] = {}
        for name, raw in names.items():
            if name.text in values:
                raise ApiError(400, f"the JSON has {name.text[:100]!r} twice; leave one out", param=name.text[:100])
            values[name.text] = fields.get(name.text, _short)(name.text, memoryview(raw))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ApiError(400, f"the body is no valid JSON: {error}") from None
    return values


def is_object(body: bytes | bytearray | memoryview) -> bool:
    """Return whether a JSON text starts with ``{``."""
    return _OBJECT.match(body) is not None


class _Name:
    """Key of a JSON object. Two keys with the same text are not equal, so a dict keeps both of them.

    The parser can thus refuse duplicate keys. The class has no ``__eq__``.
    """

    def __init__(self, text: str) -> None:
        self.text = text


class _Names:
    """Factory that creates the keys of one JSON object as `_Name` objects, and limits the number of keys."""

    count = 0

    def next(self, kind: type[_Name], text: str) -> _Name:
        self.count += 1
        if self.count > MAX_FIELDS:
            raise ApiError(413, f"the JSON has more than {MAX_FIELDS} fields, the most that are taken; send fewer")
        return kind(text)


class _Url(msgspec.Struct, forbid_unknown_fields=True):
    """JSON object {"url": ...}, which contains the URL of an image in OpenAI's chat messages."""

    url: str


class _Address(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """JSON object {"image_url": ...}, which is an image in OpenAI's field ``images`` and in chat messages."""

    image_url: str | _Url
    type: str = "image_url"


_PLACES: Final = tuple(f"place_{number}" for number in range(MAX_FILES))
_Images = msgspec.defstruct(
    "_Images",
    [(place, msgspec.Raw, msgspec.UNSET) for place in _PLACES],
    array_like=True,
    forbid_unknown_fields=True,  # so that a longer list is refused without decoding its rest
)


def several(name: str, raw: memoryview, one: Decode) -> Any:
    """Decode a value or a list of at most `MAX_FILES` values, each by the function ``one``."""
    if bytes(raw[:1]) != b"[":
        return one(name, raw)
    try:
        entries = msgspec.json.decode(raw, type=_Images)
    except msgspec.ValidationError:
        message = f"more than {MAX_FILES} images were sent, the most that are taken; send fewer"
        raise ApiError(400, message, param=name) from None
    places = (getattr(entries, place) for place in _PLACES)
    return [one(name, memoryview(entry)) for entry in places if entry is not msgspec.UNSET]


def _images(name: str, raw: memoryview) -> Any:
    return several(name, raw, _image)


def _image(name: str, raw: memoryview) -> Any:
    """Decode the JSON of an image, which is a URL or an object with a URL. Raise ApiError for other JSON above 8 KB.

    Other JSON above 8 KB is refused without decoding it. A value of at most 8 KB may be any JSON, because the caller
    checks it afterwards.
    """
    if raw.nbytes <= _LONGEST or bytes(raw[:1]) == b'"':
        return msgspec.json.decode(raw)
    try:
        return msgspec.to_builtins(msgspec.json.decode(raw, type=_Address))
    except msgspec.ValidationError:
        message = f"{name} must be a URL or data URL, or a list of them, got {_begin(raw)}"
        raise ApiError(400, message, param=name) from None


def _any(name: str, raw: memoryview) -> Any:
    data = bytes(raw)
    if data.count(b"[") + data.count(b"{") > _CONTAINERS:
        message = f"{name} has more than {_CONTAINERS} lists and objects, the most that are taken; send fewer"
        raise ApiError(413, message, param=name)
    return msgspec.json.decode(data)


def _short(name: str, raw: memoryview, *, most: int = _LONGEST) -> Any:
    if raw.nbytes > most:
        message = f"{name[:100]} has {raw.nbytes} bytes of JSON, and may have {most}; shorten it"
        raise ApiError(400, message, param=name[:100])
    return msgspec.json.decode(raw)


def _begin(raw: bytearray | memoryview) -> str:
    """Return the beginning of a JSON text as shown in error messages."""
    return shown(bytes(raw[:200]).decode(errors="replace"))


_OF_DATA: Final[Mapping[str, Decode]] = {"data": _any}
OF_IMAGES: Final[Mapping[str, Decode]] = {
    "image": _images,
    "images": _images,
    "input_reference": _image,
    "aoi": partial(_short, most=OPTIONS["aoi"].longest),
    **dict.fromkeys(("prompt", "input", "instructions", "allowed_token_ids"), partial(_short, most=_LONG)),
}
"""Decoding functions for the fields of an image request that may be larger than 8 KB, by field name."""
