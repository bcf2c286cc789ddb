"""Sources: what a client's request names, opened; and that it can name nothing else."""

from __future__ import annotations

import os
import re
import tempfile
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, Final
from urllib.parse import unquote

from PIL import Image, UnidentifiedImageError
from vllm import envs

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.declared import declared
from vllm_mmout.geo.raster.file_names import is_address, shown
from vllm_mmout.geo.raster.picture import DECODER_ERRORS
from vllm_mmout.geo.raster.remote.fetch_options import FetchOptions
from vllm_mmout.geo.raster.remote.http_file import open_remote
from vllm_mmout.serving.inputs.addresses import Domains, Guarded, host_of
from vllm_mmout.serving.inputs.local_files import LocalFiles
from vllm_mmout.serving.options import flag
from vllm_mmout.serving.request.escapes import unescaped
from vllm_mmout.serving.request.uploads import Upload, named

if TYPE_CHECKING:
    from vllm_mmout.serving.options import ServingOptions


_AT_ONCE: Final = 2**30
"""Bytes that decoding may take at once."""
_MOST: Final = 128
"""Files that one request may name: each is open until it is answered."""
_DEEPEST: Final = 32
"""Levels of lists in lists."""
_VALUES: Final = 2**20
"""Values beside files in one input of a model that takes files."""
_SHOWN: Final = 60
_FORBIDDEN: Final = re.compile(r"[\x00-\x20\x7f\\]")
"""What no address has, and what those who read addresses understand differently."""
_WHAT_TO_SEND: Final = (
    "send the file itself (multipart/form-data), a data: URL (data:image/png;base64,...), or an address (https://...)"
)


class Sources:
    """Opens what requests name: what they hold themselves, and what the server allows them to name."""

    def __init__(self, options: ServingOptions, *, local_path: str | None, domains: Sequence[str] | None) -> None:
        self._options = options
        self._files = LocalFiles(local_path)
        self._domains = Domains(domains)
        fetching = FetchOptions.from_environment()
        redirects = fetching.redirects if envs.VLLM_MEDIA_URL_ALLOW_REDIRECTS else 0
        self._fetching = replace(fetching, limit=min(fetching.limit, options.max_upload), redirects=redirects)

    @contextmanager
    def opened(self, data: Any, *, texts: bool = True) -> Iterator[Any]:
        """Open what a request holds or names; blocks while headers are fetched and read."""
        with ExitStack() as stack:
            yield _Request(self, stack, texts=texts).walked(data, 0)

    def open_text(self, text: str) -> BinaryIO:
        """Open what a text names."""
        if text[:5].lower() == "data:":
            return open_data_url(text, self._options.max_upload)
        if is_address(text):
            return self._fetched(text)
        if text[:5].lower() == "file:":
            return self._files.opened(text)
        start = repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
        raise InputError(f"{start} is nothing that this server reads; {_WHAT_TO_SEND}")

    def check(self, file: BinaryIO) -> None:
        """Check what the header of a file declares, before anything of it is decoded."""
        found = declared(file)
        if found.pixels > self._options.max_pixels:
            raise InputError(
                f"{file.name} has {found.height} x {found.width} pixels, this server takes at most"
                f" {self._options.max_pixels}; cut it, or ask for a larger {flag('max_pixels')}"
            )
        if found.at_once > _AT_ONCE:
            raise InputError(
                f"{file.name} takes {found.at_once >> 20} MiB to be decoded, which must be in memory at once,"
                f" {_AT_ONCE >> 20} MiB at most; store it in tiles, as with gdal_translate -of COG"
            )

    def _fetched(self, text: str) -> BinaryIO:
        if _FORBIDDEN.search(text):
            raise InputError("the address has a space, a backslash or a control character; write it as %20, %5C, ...")
        host_of(text)
        file = open_remote(text, self._fetching, partial(Guarded, domains=self._domains))
        if isinstance(file.name, str):
            return file
        return named(file, shown(text))


class _Request:
    """What one request has open."""

    def __init__(self, sources: Sources, stack: ExitStack, *, texts: bool) -> None:
        self._sources = sources
        self._stack = stack
        self._texts = texts
        self._count = 0
        self._values = 0

    def walked(self, data: Any, depth: int) -> Any:
        """The same with open files; lists without any stay the objects that they are."""
        self._values += 1
        if self._values > _VALUES:
            raise InputError(f"the input has more than {_VALUES} values; send them as a file")
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
        made = {name: self.walked(part, depth) for name, part in data.items()}
        return data if all(made[name] is data[name] for name in data) else made

    def _open(self, opening: Callable[[], BinaryIO]) -> BinaryIO:
        self._count += 1
        if self._count > _MOST:
            raise InputError(f"the input has more than {_MOST} files; send fewer, as one file with several bands")
        file = self._stack.enter_context(opening())
        self._sources.check(file)
        return file


def rgb_picture(file: BinaryIO) -> Image.Image:
    """Decode a picture; blocks."""
    try:
        with Image.open(file) as picture:
            return picture.convert("RGB")
    except UnidentifiedImageError:
        raise InputError(
            f"{file.name} is no picture that this model takes; send a PNG, JPEG or WebP, grey or RGB"
        ) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise InputError(f"{file.name} is larger than pictures may be: {error}; send a smaller one") from error
    except DECODER_ERRORS as error:
        raise InputError(f"{file.name} is a truncated or damaged picture: {error}; send it anew") from error


_IN_MEMORY: Final = 2**23
_SAID: Final = re.compile(r"data:(?P<said>[^,]{0,1000}),", re.IGNORECASE)


def open_data_url(text: str, limit: int) -> BinaryIO:
    """The file that a data URL holds; blocks while it is decoded."""
    found = _SAID.match(text)
    if found is None:
        raise InputError("a data URL must be data:image/png;base64,..., got one without a comma")
    _, *parameters = found["said"].split(";")
    encoded = any(parameter.strip().lower() == "base64" for parameter in parameters[-1:])
    start = found.end()
    escaped = text.find("%", start) >= 0
    if (len(text) - start) // (4 if encoded else 3 if escaped else 1) * (3 if encoded else 1) > limit:
        raise _too_long(limit)
    with ExitStack() as stack:
        file = stack.enter_context(tempfile.SpooledTemporaryFile(_IN_MEMORY))
        try:
            for piece in _from_base64(unescaped(text, start)) if encoded else unescaped(text, start):
                file.write(piece)
        except ValueError:  # of what is no ASCII, too
            raise InputError(
                f"the data URL is not of {'base64' if encoded else 'ASCII'} letters alone; encode the file's bytes as"
                " base64.b64encode does, without line breaks"
            ) from None
        size = file.tell()
        if size > limit:
            raise _too_long(limit)
        said = dict(parameter.partition("=")[::2] for parameter in parameters)
        opened = named(file, unquote(said.get("name", "")) or f"<data URL of {size} bytes>")
        stack.pop_all()
    return opened


def _from_base64(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Decode base64 that is cut anywhere."""
    left = b""
    for piece in pieces:
        text = left + piece
        whole = len(text) // 4 * 4
        yield b64decode(text[:whole], validate=True)
        left = text[whole:]
    if left:
        raise ValueError("the last group has no four letters")


def _too_long(limit: int) -> InputError:
    return InputError(
        f"a data URL holds more than {limit} bytes, the most that this server takes; send a smaller file, or ask for a"
        f" larger {flag('max_upload')}"
    )
