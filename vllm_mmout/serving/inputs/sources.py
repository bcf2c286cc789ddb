"""Open the inputs of client requests: uploads, data URLs, and allowed URLs and files."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

from vllm_mmout.errors import InputError
from vllm_mmout.geo import (
    FetchOptions,
    FileAddress,
    in_bucket,
    is_address,
    open_in_bucket,
    open_remote,
    redirect_fault,
    without_secrets,
)
from vllm_mmout.serving.inputs.addresses import Domains, GuardedConnections, host_of
from vllm_mmout.serving.inputs.data_urls import open_data_url
from vllm_mmout.serving.inputs.local_files import LocalFiles
from vllm_mmout.serving.inputs.pixel_limit import PixelLimit
from vllm_mmout.serving.inputs.prefixes import Prefixes
from vllm_mmout.serving.inputs.request_files import SHOWN, WHAT_TO_SEND, RequestFiles
from vllm_mmout.serving.inputs.uploads import named
from vllm_mmout.serving.options import flag

if TYPE_CHECKING:
    from vllm_mmout.serving.options import ServingOptions

_FORBIDDEN: Final = re.compile(r"[\x00-\x20\x7f\\]")
"""Characters that a URL must not contain: spaces, control characters and backslashes. URL parsers disagree on how to
read them."""


class Sources:
    """Opener of request inputs: uploads, data URLs, and the URLs and files that the server allows."""

    def __init__(self, options: ServingOptions, *, local_path: str | None, domains: Sequence[str] | None) -> None:
        from vllm import envs

        self._options = options
        self._limit = PixelLimit(options.max_pixels, flag("max_pixels"))
        self._files = LocalFiles(local_path)
        self._domains = Domains(domains)
        self._reads = Prefixes.of(options.read_from, flag("read_from"))
        fetching = FetchOptions.from_environment()
        redirects = fetching.redirects if envs.VLLM_MEDIA_URL_ALLOW_REDIRECTS else 0
        self._fetching = replace(fetching, limit=min(fetching.limit, options.max_upload), redirects=redirects)

    @contextmanager
    def opened(
        self,
        data: Any,
        *,
        texts: bool = True,
        words: Collection[str] = (),
        pictures: bool = True,
        most: PixelLimit | None = None,
        skip_failed: bool = False,
    ) -> Iterator[Any]:
        """Yield the input of a request with its files open. The call blocks while file headers are fetched and read.

        Each `Upload` in ``data``, and in its lists and dicts, is replaced by an open file at position 0, and each
        record of a catalogue, such as a STAC item, by a `CataloguedInput`, whose files are opened when they are read.
        All files are closed at the end.

        Args:
            data: the input that a client sent.
            texts: whether texts are addresses of files, which are opened too.
            words: keys of dicts whose texts are not addresses.
            pictures: whether the header of each file is checked against the limit of pixels. Files that are not
                pictures are left to their reader.
            most: the limit of pixels, or None for the server's limit.
            skip_failed: whether an input of a list that cannot be opened becomes an `UnreadInput`.

        """
        most = most or self._limit
        with ExitStack() as stack:
            files = RequestFiles(self.open_text, stack, texts=texts, words=words, most=most if pictures else None)
            yield files.opened(data, skip_failed=skip_failed)

    def open_text(self, text: str) -> BinaryIO:
        """Open the file that a text refers to: a data URL, web URL, address in a bucket, or ``file://`` URL."""
        if text[:5].lower() == "data:":
            return named(*open_data_url(text, self._options.max_upload))
        if is_address(text):
            return self._fetched(text)
        if in_bucket(text) and self._reads.allows(text):
            place = FileAddress.of(text)
            if (fault := redirect_fault(place)) is not None:
                raise InputError(f"{place.name}: {fault}")
            return cast("BinaryIO", open_in_bucket(text, self._fetching.limit))
        if text[:5].lower() == "file:":
            file, name, neighbours = self._files.opened(text)
            return named(file, name, neighbours=neighbours)
        shown = without_secrets(text)
        start = repr(shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}...")
        why = f", as it lies below no address of {flag('read_from')}" if in_bucket(text) else ""
        raise InputError(f"{start} is nothing that this server reads{why}; {WHAT_TO_SEND}")

    def _fetched(self, text: str) -> BinaryIO:
        if _FORBIDDEN.search(text):
            raise InputError("the address has a space, a backslash or a control character; write it as %20, %5C, ...")
        host_of(text)
        file = open_remote(text, self._fetching, partial(GuardedConnections, domains=self._domains))
        if isinstance(file.name, str):
            return file
        return named(file, without_secrets(text))
