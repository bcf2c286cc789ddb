"""Neighbours: the files in the folder of one, found by their names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, TypeAlias, cast

from vllm_mmout.errors import InputError
from vllm_mmout.raster.shared_file import SharedFile

if TYPE_CHECKING:
    from pathlib import Path

PAM, MASK = ".aux.xml", ".msk"
"""What GDAL appends to a file's name for what it keeps of the file, and for its mask."""
REMEDY = "correct it, or remove it to read the raster without"
"""What to do with a file beside a raster that is wrong; ends the message."""
Opener: TypeAlias = Callable[[str], SharedFile | None]
"""Opens a file of the folder by its name; None where there is none."""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The files beside a file that a user named by its path. Uploads and files on servers have none."""

    name: str
    """Of the file, without its folder."""
    opener: Opener

    def appended(self, suffix: str) -> SharedFile | None:
        """The file whose name is this one's with something behind it, in small letters or in capitals."""
        return self._first([self.name + suffix, self.name + suffix.upper()])

    def replaced(self, suffixes: Iterable[str]) -> SharedFile | None:
        """The first file whose name is this one's with another suffix, in small letters or in capitals."""
        stem = self.name.rpartition(".")[0] or self.name
        return self._first(stem + each for suffix in suffixes for each in (suffix.lower(), suffix.upper()))

    def _first(self, names: Iterable[str]) -> SharedFile | None:
        return next((file for name in names if (file := self.opener(name)) is not None), None)


class FileWithNeighbours:
    """A file object whose neighbours may be read too."""

    neighbours: Neighbours | None = None


def neighbours_of(path: Path) -> Neighbours:
    """The files in the folder of a local file."""
    return Neighbours(path.name, partial(_opened, path))


def _opened(path: Path, name: str) -> SharedFile | None:
    place = path.with_name(name)
    try:
        if not os.path.isfile(place):  # noqa: PTH113 - that of a Path raises where a name is too long for a file
            return None  # nor is a pipe one, which would be waited for
        return SharedFile(cast("BinaryIO", place.open("rb")), str(place), owned=True)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"cannot open {str(place)!r}, which belongs to {path.name}: {error}") from error
