"""Results that a request has written to a bucket, with the server's credentials, below what its operator allows."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from vllm_mmout.engine.threads import in_thread
from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.geo import Place, in_bucket, place_of
from vllm_mmout.outputs.base import unknown_suffix
from vllm_mmout.processors.base import formats_for
from vllm_mmout.serving.inputs.prefixes import Prefixes
from vllm_mmout.serving.options import flag
from vllm_mmout.serving.response.encode import size_of
from vllm_mmout.serving.response.responses import close_entries, json_response
from vllm_mmout.serving.response.result_files import Encoded

if TYPE_CHECKING:
    from starlette.responses import Response

    from vllm_mmout.outputs.base import MediaOutput
    from vllm_mmout.serving.work import Work


def check_path(work: Work) -> None:
    """Refuse to write a client's result anywhere but below the prefixes that the server was given."""
    path = work.params.path
    if path is None:
        return
    writes = Prefixes.of(work.service.options.write_to, flag("write_to"))
    try:
        allowed = in_bucket(path) and writes.allows(path)
    except InputError as error:
        raise OptionError(str(error), param="path") from None
    if not allowed:
        raise OptionError(
            f"path is no file below an address where this server writes ({flag('write_to')}); choose another, or save"
            " the answer, and leave it out",
            param="path",
        )
    inputs = work.data if isinstance(work.data, list) else [work.data]
    if any(in_bucket(one) and Place.of(one).name == Place.of(path).name for one in inputs):
        raise OptionError("the result would be written over its own input; choose another path", param="path")
    for name in work.names:
        formats = formats_for(work.service.binding.processors[name], work.params)
        if formats is not None and place_of(path).suffix.lower() not in formats:
            unknown = unknown_suffix(place_of(path), formats)
            unknown.param = "path"
            raise unknown


async def written(work: Work) -> Response:
    """Run a request that says where its results are written, and name their addresses."""
    last = await work.last()
    urls: list[str] = []

    def entry(output: MediaOutput) -> Encoded:
        urls.append(str(output.path))
        name = output.formats[PurePath(urls[-1]).suffix.lower()]
        return Encoded(b"", name, size=size_of(output, name))

    def entries() -> list[Encoded]:
        return list(work.made(last.outputs, lambda output, _: entry(output)).values())

    found = await in_thread(entries, close_entries)
    return json_response(
        found,
        tiles=last.progress.total if last.progress else 1,
        processors=work.named,
        urls=urls,
        warnings=last.assumed,
    )
