"""Open the inputs of client requests: uploads, data URLs, and allowed URLs and files."""

from __future__ import annotations

import io
import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Final, cast

from vllm_mmout.errors import InputError
from vllm_mmout.geo import (
    FetchOptions,
    FileAddress,
    FileWithNeighbours,
    Neighbours,
    in_bucket,
    is_address,
    open_in_bucket,
    open_remote,
    printable_name,
    redirect_fault,
    without_secrets,
)
from vllm_mmout.models.inputs.catalogued import catalogued
from vllm_mmout.serving.inputs.addresses import Domains, GuardedConnections, host_of
from vllm_mmout.serving.inputs.data_urls import open_data_url
from vllm_mmout.serving.inputs.local_files import LocalFiles
from vllm_mmout.serving.inputs.pixel_limit import PixelLimit
from vllm_mmout.serving.inputs.prefixes import Prefixes
from vllm_mmout.serving.options import flag

if TYPE_CHECKING:
    from vllm_mmout.models.inputs.catalogued import CataloguedInput
    from vllm_mmout.serving.options import ServingOptions

_IN_MEMORY = 1 << 20
"""Maximum number of bytes of an upload that are kept in memory. Larger uploads go to disk."""


@dataclass(slots=True)
class Upload:
    """File that a client sent, in memory if it is small, else on disk."""

    name: str
    """File name that the client sent, without folders. Shown in messages, may name a band, and is never used as a
    path."""
    file: BinaryIO
    """Seekable file, positioned at its start once it is complete."""
    size: int
    """Size in bytes of the part that has arrived."""

    @classmethod
    def begun(cls, name: str) -> Upload:
        """Return an empty upload, which receives the bytes of a file called ``name``."""
        file = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - the form closes it
        return cls(name.replace("\\", "/").rpartition("/")[2][:200], cast("BinaryIO", file), 0)

    def takes(self, more: int) -> bool:
        """Return whether ``more`` bytes can be written without waiting for a disk."""
        return self.size + more <= _IN_MEMORY

    def write(self, piece: bytes) -> None:
        """Append received bytes. The call waits for the disk unless `takes` is true for their number."""
        try:
            self.file.write(piece)
        except OSError as error:
            # The folder, because an error of a temporary file names no file.
            error.filename = error.filename or tempfile.gettempdir()
            raise
        self.size += len(piece)


@dataclass(frozen=True, slots=True)
class ReceivedForm:
    """Fields and uploaded files of a form by name, each in the order sent."""

    fields: dict[str, list[str]]
    files: dict[str, list[Upload]]

    def close(self) -> None:
        """Close all uploaded files. The call blocks while the disk frees large files."""
        for uploads in self.files.values():
            for upload in uploads:
                upload.file.close()


def named(file: IO[bytes], name: str, *, owned: bool = True, neighbours: Neighbours | None = None) -> BinaryIO:
    """Wrap a file with a name, which is used in messages and to recognise bands, but never as a path."""
    made = _NamedFile(file, name, owned=owned)
    made.neighbours = neighbours
    return cast("BinaryIO", made)


class _NamedFile(FileWithNeighbours, io.BufferedIOBase):
    def __init__(self, file: IO[bytes], name: str, *, owned: bool) -> None:
        self._file = file
        self._owned = owned
        self.name = printable_name(name) or f"<file of {file.seek(0, 2)} bytes>"
        file.seek(0)

    def readable(self) -> bool:
        return not self.closed

    def seekable(self) -> bool:
        return not self.closed

    def read(self, size: int | None = -1, /) -> bytes:
        return self._open().read(-1 if size is None else size)

    def read1(self, size: int = -1, /) -> bytes:
        return self.read(size)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self._open().seek(offset, whence)

    def tell(self) -> int:
        return self._open().tell()

    def close(self) -> None:
        if not self.closed and self._owned:
            self._file.close()
        super().close()

    def _open(self) -> IO[bytes]:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        return self._file


_MOST: Final = 128
"""Maximum number of files in one request. All are open until the request is answered."""
_DEEPEST: Final = 32
"""Maximum depth of nested lists and dicts in an input."""
_VALUES: Final = 2**20
"""Maximum number of values in one input, files included."""
_SHOWN: Final = 60
_FORBIDDEN: Final = re.compile(r"[\x00-\x20\x7f\\]")
"""Characters that are invalid in a URL, and that URL parsers treat differently."""
_WHAT_TO_SEND: Final = (
    "send the file itself (multipart/form-data), a data: URL (data:image/png;base64,...), or an address (https://...)"
)


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
    ) -> Iterator[Any]:
        """Yield the input of a request with its files open. The call blocks while file headers are fetched and read.

        Each `Upload` in ``data``, and in its lists and dicts, is replaced by an open file at position 0. All files are
        closed at the end.

        Args:
            data: the input that a client sent.
            texts: whether texts are addresses of files, which are opened too.
            words: keys of dicts whose texts are not addresses.
            pictures: whether the header of each file is checked against the limit of pixels. Files that are not
                pictures are left to their reader.
            most: the limit of pixels, or None for the server's limit.

        """
        most = most or self._limit
        with ExitStack() as stack:
            yield _RequestFiles(self, stack, texts=texts, words=words, most=most if pictures else None).walked(data, 0)

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
        start = repr(shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}...")
        why = f", as it lies below no address of {flag('read_from')}" if in_bucket(text) else ""
        raise InputError(f"{start} is nothing that this server reads{why}; {_WHAT_TO_SEND}")

    def _fetched(self, text: str) -> BinaryIO:
        if _FORBIDDEN.search(text):
            raise InputError("the address has a space, a backslash or a control character; write it as %20, %5C, ...")
        host_of(text)
        file = open_remote(text, self._fetching, partial(GuardedConnections, domains=self._domains))
        if isinstance(file.name, str):
            return file
        return named(file, without_secrets(text))


class _RequestFiles:
    """Opened files of one request. They are closed with ``stack``."""

    def __init__(
        self, sources: Sources, stack: ExitStack, *, texts: bool, words: Collection[str], most: PixelLimit | None
    ) -> None:
        self._sources = sources
        self._stack = stack
        self._texts = texts
        self._words = words
        self._pixel_limit = most
        """Maximum number of pixels of each file, or None to skip the check."""
        self._count = 0
        self._values = 0

    def walked(self, data: Any, depth: int) -> Any:
        """Return ``data`` with an open file in place of each upload, and of each text if texts are file addresses."""
        self._values += 1
        if self._values > _VALUES:
            raise InputError(f"the input has more than {_VALUES} values; send them as a file")
        if self._pixel_limit is not None and (record := self._record(data)) is not None:
            return record
        if isinstance(data, list | tuple | dict):
            if depth == _DEEPEST:
                raise InputError(f"the input is nested deeper than {_DEEPEST} levels; send it flat")
            return self._of_dict(data, depth + 1) if isinstance(data, dict) else self._of_list(data, depth + 1)
        if isinstance(data, str):
            return self._open(partial(self._sources.open_text, data)) if self._texts else data
        if isinstance(data, os.PathLike):
            raise InputError(f"a path is nothing that this server reads; {_WHAT_TO_SEND}")
        if isinstance(data, Upload):
            return self._open(partial(named, data.file, data.name, owned=False))
        return data

    def _of_list(self, data: list[Any] | tuple[Any, ...], depth: int) -> Any:
        made = [self.walked(part, depth) for part in data]
        if all(new is old for new, old in zip(made, data, strict=True)):
            return data
        return made if isinstance(data, list) else tuple(made)

    def _of_dict(self, data: dict[Any, Any], depth: int) -> Any:
        made = {name: part if name in self._words else self.walked(part, depth) for name, part in data.items()}
        return data if all(made[name] is data[name] for name in data) else made

    def _record(self, data: Any) -> CataloguedInput | None:
        """Return the input that a catalogue's record, such as a STAC item, describes. Return None for other data."""
        if isinstance(data, Upload):
            data = named(data.file, data.name, owned=False)
        return None if isinstance(data, str) and not self._texts else catalogued(data, self)

    def document(self, address: str) -> BinaryIO:
        """Open a document of a catalogue, such as a STAC item, by its address."""
        return self._sources.open_text(address)

    def file(self, address: str) -> BinaryIO:
        """Open a file that a catalogue's record names, by its URL or its address in a bucket."""
        if not is_address(address) and not in_bucket(address):
            raise InputError(f"{address[:_SHOWN]!r} is no address, and this server opens only addresses for a record")
        return self._open(partial(self._sources.open_text, address))

    def _open(self, opening: Callable[[], BinaryIO]) -> BinaryIO:
        self._count += 1
        if self._count > _MOST:
            raise InputError(f"the input has more than {_MOST} files; send fewer, as one file with several bands")
        file = self._stack.enter_context(opening())
        if self._pixel_limit is not None:
            self._pixel_limit.check(file)
        return file
