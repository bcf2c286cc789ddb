"""KeptRequest: the stored request of a job, from which any server can start the job again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from vllm_mmout.params import OPTIONS, OutputParams

if TYPE_CHECKING:
    from vllm_mmout.serving.request.fields import ImageRequest


class KeptRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields of an `ImageRequest` without uploaded files, which do not depend on the server that received it."""

    images: tuple[str, ...]
    """URLs of the input files."""
    given: dict[str, Any]
    """Options of the request as plain data, without options that have their default value."""
    model: str | None = None
    output_format: str | None = None
    output_compression: int | None = None
    background: Literal["auto", "transparent", "opaque"] = "auto"

    @property
    def options(self) -> OutputParams:
        """Return the options of the request: how to read the input and which results to make."""
        return OutputParams.from_mapping(self.given)


def kept(request: ImageRequest) -> str | None:
    """Return a request as JSON, or None if it contains files, which are lost when their server stops."""
    if not all(isinstance(image, str) and image[:5].lower() != "data:" for image in request.images):
        return None
    defaults = OutputParams()
    options = {name: getattr(request.options, name) for name in OPTIONS}
    values = {name: getattr(request, name) for name in KeptRequest.__struct_fields__ if name != "given"}
    changed = {name: value for name, value in options.items() if value != getattr(defaults, name)}
    return msgspec.json.encode(KeptRequest(given=changed, **values)).decode()


def kept_request(text: str) -> KeptRequest:
    """Return the request that `kept` encoded as ``text``."""
    return msgspec.json.decode(text, type=KeptRequest)
