"""Fields: what one route takes, read from forms and JSON, checked, and described.

JSON is decoded field by field within limits: a parser lets nothing else run while it decodes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from vllm_mmout.errors import OptionError
from vllm_mmout.messages import shown, unknown
from vllm_mmout.request_options import Option
from vllm_mmout.serving.errors import ApiError, api_error
from vllm_mmout.serving.inputs.sources import Form
from vllm_mmout.serving.request.multipart import MAX_FIELDS, MAX_FILES

T = TypeVar("T")

USELESS: Final = dict.fromkeys(
    (
        *("moderation", "style", "input_fidelity", "complexity", "frame_count", "frame_duration_ms", "markup"),
        "svg",
    ),
    "it would change nothing here; leave it out",
)
"""OpenAI's fields that are refused everywhere, and why."""


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields that one route takes."""

    path: str
    """Of the route; or where they stand, for messages."""
    options: Mapping[str, Option]
    refused: Mapping[str, str]
    """Fields that clients know from elsewhere -> why there are none here, and what to do instead."""
    apart: tuple[str, ...] = ()
    """Fields that are no options, and read by who has made this."""
    later: Collection[str] = ()
    """Options that are checked together, by what is made of them."""
    where: str = ""
    """In what the fields stand, for messages."""

    def without(self, names: Iterable[str], why: str, *, path: str, apart: tuple[str, ...] = ()) -> Fields:
        """Those of another route, which takes fewer."""
        left = {name: option for name, option in self.options.items() if name not in set(names)}
        return Fields(path, left, {**self.refused, **dict.fromkeys(names, why)}, apart, self.later)

    def of_form(self, form: Form) -> dict[str, Any]:
        """The typed values of a form's fields; those that are empty are left out."""
        for key, uploads in form.files.items():
            name = key.partition("[")[0]
            if name not in self.apart and any(upload.size or upload.name for upload in uploads):
                self.check_known(name)
                raise ApiError(400, f"{name} is sent as a file; send it as text", param=name)
        grouped: dict[str, dict[str, Sequence[str]]] = {}
        for key, texts in form.fields.items():
            name, bracket, rest = key.partition("[")
            if name not in self.apart:
                self.check_known(name)
                grouped.setdefault(name, {})[bracket + rest] = texts
        return self._given(grouped, Option.from_texts)

    def of_object(self, body: Any) -> dict[str, Any]:
        """The typed values of a JSON object's fields; those that are null or empty are left out."""
        if not isinstance(body, Mapping):
            raise ApiError(400, f"the body must be a JSON object, got {shown(body)}")
        for name in body:
            if name not in self.apart:
                self.check_known(name)
        given = {name: value for name, value in body.items() if name not in self.apart and value is not None}
        return self._given(given, Option.from_json)

    def check_known(self, name: str) -> None:
        """Refuse a field that is none of the route's."""
        if name in self.refused:
            raise ApiError(400, f"{name} is not supported by {self.path}: {self.refused[name]}", param=name)
        if name not in self.options:
            raise api_error(unknown(name, [*self.apart[:1], *self.options], kind="field", where=self.where))

    def schema(self, *required: str, **more: dict[str, Any]) -> dict[str, Any]:
        """The JSON schema of an object of just these fields."""
        said = {name: option.schema for name, option in self.options.items()}
        fields = {**more, **said, **{name: schema for name, schema in more.items() if name in said}}
        return {"type": "object", "properties": fields, "required": list(required), "additionalProperties": False}

    def _given(self, values: Mapping[str, Any], read: Callable[[Option, Any], Any]) -> dict[str, Any]:
        try:
            found = {name: read(self.options[name], value) for name, value in values.items()}
            return {
                name: value if name in self.later else self.options[name].checked(value)
                for name, value in found.items()
                if value is not None
            }
        except OptionError as error:
            raise api_error(error) from None


def made(kind: Callable[..., T], given: Mapping[str, Any], names: Iterable[str], **more: Any) -> T:
    """A request, or its params, of those of the values that are its own."""
    try:
        return kind(**{name: given[name] for name in names if name in given}, **more)
    except OptionError as error:
        raise api_error(error) from None


_OBJECT: Final = re.compile(rb"[ \t\n\r]*\{")
_LONGEST: Final = 8192
"""Bytes of a field's JSON."""
_LONG: Final = 1 << 19
"""Bytes of the JSON of a prompt, each of whose letters may be written as an escape, or of a list of tokens."""
_CONTAINERS: Final = 1 << 21
"""Lists and objects in ``data``: an empty one is two bytes of JSON and some hundred in memory."""


def decoded(body: bytearray, *, data: bool) -> Any:
    """Decode a body; blocks, though never for long."""
    try:
        if not is_object(body):
            if len(body) > _LONGEST:
                raise ApiError(400, f"the body must be a JSON object, got {_begin(body)}")
            return msgspec.json.decode(body)
        # First the outermost names alone: each value's length is looked at before objects are made of it.
        names = msgspec.json.decode(body, type=dict[_Name, msgspec.Raw], dec_hook=_Names().next)
        found: dict[str, Any] = {}
        for name, raw in names.items():
            if name.text in found:
                raise ApiError(400, f"the JSON has {name.text[:100]!r} twice; leave one out", param=name.text[:100])
            found[name.text] = (_OF_DATA if data else _OF_IMAGES).get(name.text, _short)(name.text, memoryview(raw))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ApiError(400, f"the body is no valid JSON: {error}") from None
    return found


def is_object(body: bytes | bytearray) -> bool:
    """Whether JSON, if it is valid, is an object."""
    return _OBJECT.match(body) is not None


class _Name:
    """A name in a JSON object, equal to no other: what is there twice stays there twice."""

    def __init__(self, text: str) -> None:
        self.text = text


class _Names:
    """Makes the names of one object."""

    def __init__(self) -> None:
        self._count = 0

    def next(self, kind: type[_Name], text: str) -> _Name:
        """One more."""
        self._count += 1
        if self._count > MAX_FIELDS:
            raise ApiError(413, f"the JSON has more than {MAX_FIELDS} fields, the most that are taken; send fewer")
        return kind(text)


class _Address(msgspec.Struct, forbid_unknown_fields=True):
    """What a list of OpenAI's ``images`` has."""

    image_url: str


_PLACES: Final = tuple(f"place_{number}" for number in range(MAX_FILES))
_Images = msgspec.defstruct(
    "_Images",
    [(place, msgspec.Raw, msgspec.UNSET) for place in _PLACES],
    array_like=True,
    forbid_unknown_fields=True,  # so that a longer list is refused where it gets too long
)


def _images(name: str, raw: memoryview) -> Any:
    if bytes(raw[:1]) != b"[":
        return _image(name, raw)
    try:
        entries = msgspec.json.decode(raw, type=_Images)
    except msgspec.ValidationError:
        message = f"more than {MAX_FILES} images were sent, the most that are taken; send fewer"
        raise ApiError(400, message, param=name) from None
    places = (getattr(entries, place) for place in _PLACES)
    return [_image(name, memoryview(entry)) for entry in places if entry is not msgspec.UNSET]


def _image(name: str, raw: memoryview) -> Any:
    """A text, or an object with one; of what is neither as much as a message needs."""
    if raw.nbytes <= _LONGEST or bytes(raw[:1]) == b'"':
        return msgspec.json.decode(raw)
    try:
        return {"image_url": msgspec.json.decode(raw, type=_Address).image_url}
    except msgspec.ValidationError:
        message = f"{name} must be a URL or data URL, or a list of them, got {_begin(raw)}"
        raise ApiError(400, message, param=name) from None


def _long(name: str, raw: memoryview) -> Any:
    return _short(name, raw, most=_LONG)


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
    """The begin of some JSON, for messages."""
    return shown(bytes(raw[:200]).decode(errors="replace"))


_OF_IMAGES: Final[Mapping[str, Callable[[str, memoryview], Any]]] = {
    "image": _images,
    "images": _images,
    **dict.fromkeys(("prompt", "input", "instructions", "allowed_token_ids"), _long),
}
_OF_DATA: Final[Mapping[str, Callable[[str, memoryview], Any]]] = {"data": _any}
