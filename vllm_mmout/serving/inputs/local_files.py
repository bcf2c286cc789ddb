"""LocalFiles, which opens the server's own files that clients name by ``file://`` URLs, all within one folder."""

from __future__ import annotations

import errno
import os
import stat
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final
from urllib.parse import unquote, urlsplit

from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.geo import Neighbours, SharedFile, printable_name

FLAG: Final = "--allowed-local-media-path"
_FILES: Final = Path("/proc/self/fd")
_OPEN_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""Flags of `os.open`. With O_NONBLOCK, opening a named pipe without a writer does not block the thread."""


class LocalFiles:
    """Opener of files that clients name by ``file://`` URLs. All files must be within one folder of the server.

    As in vLLM, ".." and symbolic links are resolved first, and the result must be within the folder. The open file is
    checked again, because a file or a folder may be replaced in between.
    """

    def __init__(self, folder: str | None) -> None:
        self._folder = Path(folder).resolve() if folder else None
        if self._folder is not None and not self._folder.is_dir():
            raise OptionError(f"{FLAG} must be a folder, got {folder!r}")

    def opened(self, url: str) -> tuple[BinaryIO, str, Neighbours]:
        """Open a file by its URL. Return (file, name, opener). ``opener`` opens other files in the folder of the file.

        ``name`` is the name of the file in messages.
        """
        if self._folder is None:
            raise InputError(
                f"this server reads no files of its own; send the file itself, or have the server started with {FLAG}"
            )
        path = _path(url)
        name = printable_name(path) or "the folder"
        try:
            real = os.path.realpath(path)
            if not self._holds(real):
                raise _outside()
            neighbours = Neighbours(Path(path).name, partial(self._neighbour, Path(path)))
            return self._file(real, name), name, neighbours
        except ValueError:  # a NUL, or a character that no file name can have
            raise _outside() from None
        except OSError as error:
            raise _unreadable(name, error) from error

    def _neighbour(self, path: Path, name: str) -> SharedFile | None:
        """Open the file ``name`` in the folder of ``path``. Return None if it does not exist."""
        shown = printable_name(name)
        try:
            real = os.path.realpath(path.with_name(name))
            if not self._holds(real):
                raise _outside()
            if not os.path.isfile(real):  # noqa: PTH113 - Path.is_file raises if a name is too long
                return None
            return SharedFile(self._file(real, shown), shown, owned=True)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unreadable(shown, error) from error

    def _holds(self, path: str) -> bool:
        return self._folder is not None and self._folder in Path(path).parents

    def _file(self, path: str, name: str) -> BinaryIO:
        descriptor = os.open(path, _OPEN_FLAGS)
        try:
            self._check(descriptor, path, name)
            return os.fdopen(descriptor, "rb")
        except BaseException:
            os.close(descriptor)
            raise

    def _check(self, descriptor: int, path: str, name: str) -> None:
        """Raise InputError unless the open file is a regular file within the folder that clients may read."""
        if not self._holds(_true_path(descriptor, path)):
            raise _outside()
        kind = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(kind):
            raise InputError(f"{name!r} is a folder; name the files in it, in a list")
        if not stat.S_ISREG(kind):
            raise InputError(f"{name!r} is no file that can be read; name a regular file")


def _path(url: str) -> str:
    """Return the path of a ``file://`` URL (RFC 8089). Raise InputError if the URL is malformed."""
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = None
    if parts is None or parts.netloc.lower() not in ("", "localhost") or not parts.path.startswith("/"):
        raise InputError("an address of a file must be file:///path, with the whole path")
    if parts.query or parts.fragment:
        raise InputError('in the address of a file "?" and "#" must be written %3F and %23')
    return unquote(parts.path, errors="surrogateescape")


def _true_path(descriptor: int, path: str) -> str:
    """Return the real path of an open file, with symbolic links resolved.

    Linux knows it. On other systems it is ``path``, resolved, or "" if another file is there now.
    """
    if _FILES.is_dir():
        return str((_FILES / str(descriptor)).readlink())
    real = Path(path).resolve()
    return str(real) if os.path.samestat(real.stat(), os.fstat(descriptor)) else ""


def _outside() -> InputError:
    """Return the error for a path outside the allowed folder. It does not reveal whether the file exists."""
    return InputError(
        f"the file is not within the folder that this server reads from ({FLAG}); send the file itself, or have it"
        " put there"
    )


def _unreadable(name: str, error: OSError) -> InputError:
    if error.errno == errno.ENOENT:
        return InputError(f"there is no file {name!r} where the address says; check the path")
    return InputError(f"{name!r} cannot be opened: {os.strerror(error.errno or 0)}")
