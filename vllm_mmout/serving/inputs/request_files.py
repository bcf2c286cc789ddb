"""Open the files of one request: files that the client names, and files that STAC items or similar records name."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

from vllm_mmout.engine.mosaic.mosaic import FILES_AT_ONCE, UnreadInput, scene_name
from vllm_mmout.errors import InputError
from vllm_mmout.geo import in_bucket, is_address, without_secrets
from vllm_mmout.models.inputs.catalogued import catalogued
from vllm_mmout.serving.inputs.uploads import Upload, named

if TYPE_CHECKING:
    from vllm_mmout.models.inputs.catalogued import CataloguedInput
    from vllm_mmout.serving.inputs.pixel_limit import PixelLimit

_MOST: Final = 128
"""Maximum number of files of one request that are open at the same time."""
_MOST_BESIDE_RECORDS: Final = _MOST - 2 * FILES_AT_ONCE
"""Maximum number of files in a request that also has catalogue records, such as STAC items. Files that the records name
do not count.

Of the `_MOST` files that may be open, ``2 * FILES_AT_ONCE`` are reserved for files that the records name. Half of the
reserve is for scenes that are being read, and half for earlier scenes that are being closed.
"""
_DEEPEST: Final = 32
"""Maximum depth of nested lists and dicts in an input."""
_VALUES: Final = 2**20
"""Maximum number of values in the input of a request. Each list, dict, number, text and file counts as a value."""
SHOWN: Final = 60
"""Maximum number of characters of a client's text in a message."""
WHAT_TO_SEND: Final = (
    "send the file itself (multipart/form-data), a data: URL (data:image/png;base64,...), or an address (https://...)"
)


class RequestFiles:
    """Opener of the files of one request, which closes them when the request ends.

    The exit stack ``stack`` closes the files. Files of catalogue records are closed earlier, with their raster.
    ``open_text`` opens the file that a text names, if the server allows it.
    """

    def __init__(
        self,
        open_text: Callable[[str], BinaryIO],
        stack: ExitStack,
        *,
        texts: bool,
        words: Collection[str],
        most: PixelLimit | None,
    ) -> None:
        self._open_text = open_text
        self._stack = stack
        self._texts = texts
        self._words = words
        self._pixel_limit = most
        """Maximum number of pixels of each file, or None to skip the check."""
        self._values = 0
        self._count = 0
        """Number of files opened so far that stay open for the whole request."""
        self._records = 0
        """Number of catalogue records, such as STAC items, found in the request so far."""
        self._lock = threading.Lock()
        self._of_records: list[BinaryIO] | None = []
        """Files opened for catalogue records, such as STAC items. The list may include closed files. None after the
        request has ended."""
        stack.callback(self._close_records)

    def opened(self, data: Any, *, skip_failed: bool) -> Any:
        """Return ``data``, the input of a request, with its uploads and file addresses replaced by open files.

        If ``skip_failed`` is True, an input of a list that cannot be opened becomes an `UnreadInput`.
        """
        if not (skip_failed and isinstance(data, list | tuple)):
            return self.walked(data, 0)
        return [self._walked_or_unread(each, number) for number, each in enumerate(data, start=1)]

    def _walked_or_unread(self, data: Any, number: int) -> Any:
        try:
            return self.walked(data, 1)
        except InputError as error:
            if max(self._count, self._records) > _MOST or self._values > _VALUES:
                raise  # a limit of the request, which no input alone exceeds
            is_data_url = isinstance(data, str) and data[:5].lower() == "data:"
            return UnreadInput(f"input {number}" if is_data_url else scene_name(data, number), error)

    def walked(self, data: Any, depth: int) -> Any:
        """Return ``data`` with each upload replaced by an open file, and each catalogue record by a `CataloguedInput`.

        If ``texts`` of the constructor is True, texts are file addresses, and are replaced by open files as well. Raise
        InputError if a limit is exceeded. ``depth`` is the number of lists and dicts that contain ``data``.
        """
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
            return self._open(partial(self._open_text, data)) if self._texts else data
        if isinstance(data, os.PathLike):
            raise InputError(f"a path is nothing that this server reads; {WHAT_TO_SEND}")
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
        """Read a catalogue record, such as a STAC item, as an input. Return None if ``data`` is not such a record."""
        if data is None or isinstance(data, int | float):  # there may be a million numbers
            return None
        if isinstance(data, Upload):
            data = named(data.file, data.name, owned=False)
        record = None if isinstance(data, str) and not self._texts else catalogued(data, self)
        if record is not None:
            self._records += 1
            if self._records > _MOST:
                raise InputError(f"the input has more than {_MOST} records of a catalogue; send fewer")
        return record

    def document(self, address: str) -> BinaryIO:
        """Open a document of a catalogue, such as a STAC item, by its address."""
        return self._open_text(address)

    def file(self, address: str) -> BinaryIO:
        """Open a file of a catalogue record, such as a STAC item, by its URL or its address in a bucket.

        The file is closed together with the raster that is read from it.
        """
        if not is_address(address) and not in_bucket(address):
            raise InputError(f"{address[:SHOWN]!r} is no address, and this server opens only addresses for a record")
        with self._lock:
            self._open_records(address)
        file: Any = self._open_text(address)
        try:
            if self._pixel_limit is not None:
                self._pixel_limit.check(file)
            file.closes_with_raster = True
            with self._lock:
                self._open_records(address).append(file)
        except BaseException:
            file.close()
            raise
        return cast("BinaryIO", file)

    def _open_records(self, address: str) -> list[BinaryIO]:
        """Return the list of files open for catalogue records. Raise InputError if no more files may be opened.

        No more files may be opened if too many files are open, or if the request has ended. ``address`` is the address
        of the file to open, for the message.
        """
        if self._of_records is None:
            raise InputError(f"{without_secrets(address)} was to be read after the end of its request")
        if self._count > _MOST_BESIDE_RECORDS:
            raise InputError(
                f"the input has {self._count} files beside records of a catalogue, at most {_MOST_BESIDE_RECORDS} are"
                " taken; send them in requests of their own"
            )
        self._of_records = [each for each in self._of_records if not each.closed]
        if self._count + len(self._of_records) >= _MOST:
            raise InputError(f"more than {_MOST} files would be open at once; send fewer records of a catalogue")
        return self._of_records

    def _close_records(self) -> None:
        with self._lock:
            files, self._of_records = self._of_records or [], None
        for file in files:
            with suppress(OSError):
                file.close()

    def _open(self, opening: Callable[[], BinaryIO]) -> BinaryIO:
        self._count += 1
        if self._count > _MOST:
            raise InputError(f"the input has more than {_MOST} files; send fewer, as one file with several bands")
        file = self._stack.enter_context(opening())
        if self._pixel_limit is not None:
            self._pixel_limit.check(file)
        return file
