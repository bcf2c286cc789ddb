"""KeptRequest: what a client has asked of a job whose input any server can read again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from vllm_mmout.params import OPTIONS, OutputParams

if TYPE_CHECKING:
    from vllm_mmout.serving.request.fields import ImageRequest


class KeptRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is needed of an `ImageRequest` that holds no files: all of it the client's, nothing of a server's."""

    images: tuple[str, ...]
    """Addresses."""
    given: dict[str, Any]
    """Its options as plain data, without those left at their default."""
    model: str | None = None
    output_format: str | None = None
    output_compression: int | None = None
    background: Literal["auto", "transparent", "opaque"] = "auto"

    @property
    def options(self) -> OutputParams:
        """How the input is read and what is made of it."""
        return OutputParams.from_mapping(self.given)


def kept(asked: ImageRequest) -> str | None:
    """A request as JSON; None where it holds files, which end with the server that has them."""
    if not all(isinstance(image, str) and image[:5].lower() != "data:" for image in asked.images):
        return None
    plain = OutputParams()
    given = {name: getattr(asked.options, name) for name in OPTIONS}
    values = {name: getattr(asked, name) for name in KeptRequest.__struct_fields__ if name != "given"}
    changed = {name: value for name, value in given.items() if value != getattr(plain, name)}
    return msgspec.json.encode(KeptRequest(given=changed, **values)).decode()


def kept_request(text: str) -> KeptRequest:
    """What `kept` has made a text of."""
    return msgspec.json.decode(text, type=KeptRequest)
