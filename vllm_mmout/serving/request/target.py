"""The field ``path``: where a client may have its result written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from vllm_mmout.geo import in_bucket
from vllm_mmout.request_options import said
from vllm_mmout.serving.errors import ApiError

_NOT_BESIDE: Final = ("stream", "response_format", "output_format", "output_compression")


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where a client may have its result written."""

    path: Annotated[
        str | None,
        said(
            "address in a bucket, below one that the server writes to, of the file to write the result to, as"
            " s3://bucket/out/mask.tif. The answer names it as `url`."
        ),
    ] = None


def check_target(given: Mapping[str, Any]) -> None:
    """Refuse a path that is none of a bucket's, and what says otherwise how the answer holds the result."""
    path = given.get("path")
    if path is None:
        return
    if not in_bucket(path):
        message = "path must be an address in a bucket: a client cannot choose where the server writes on its disks"
        raise ApiError(400, f"{message}; save the answer, and leave it out", param="path")
    for name in _NOT_BESIDE:
        if given.get(name):
            message = f"path says where the result goes, and by its suffix in which format; leave {name} out, or path"
            raise ApiError(400, message, param=name)
