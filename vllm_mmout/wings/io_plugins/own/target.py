"""Write results to files that clients name, below the folder that the server's operator allows."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from vllm_mmout.geo import atomic_file
from vllm_mmout.messages import shown
from vllm_mmout.outputs.formats import format_named, is_folder_suffix, suffix_of
from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.options import flag

if TYPE_CHECKING:
    from vllm_mmout.serving.response.result_files import Encoded

_FIELD: Final = "output_path"
_CHUNK_BYTES: Final = 1 << 20
"""Number of bytes that are written to a file at a time."""


@dataclass(frozen=True, slots=True)
class OutputPath:
    """Destination of a result: a folder, or a file whose suffix decides the format."""

    path: Path
    folder: bool
    """Whether ``path`` is a folder. A unique file name is then created for each result."""

    @classmethod
    def below(cls, root: str, text: str) -> Self:
        """Create the destination from a client's path ``text``, which must be below the folder ``root``.

        Raises:
            ApiError: the path leads outside ``root``, for example by ".." or a link.

        """
        base = Path(root).resolve()
        try:
            path = (base / text).resolve()
        except (OSError, RuntimeError, ValueError):  # a loop of links, or a NUL character
            path = Path(os.sep)
        if not path.is_relative_to(base):
            wrong = f"{_FIELD} {shown(text)} is not below the folder to which this server writes"
            raise ApiError(400, f"{wrong} ({flag('output_root')}); name a path relative to it", param=_FIELD)
        is_file = not text.endswith(os.sep) and not path.is_dir() and format_named(suffix_of(path)) is not None
        if is_file and is_folder_suffix(suffix_of(path)):
            raise ApiError(
                400, f"{_FIELD} {path.name} would be a folder; name one zip file, {path.name}.zip", param=_FIELD
            )
        return cls(path, folder=not is_file)

    def format_of(self, image_format: str | None) -> str | None:
        """Return the format that the suffix of `path` means. Return ``image_format`` if `path` is a folder.

        Raises:
            ApiError: the suffix and ``image_format`` mean different formats.

        """
        if self.folder:
            return image_format
        form = format_named(suffix_of(self.path))
        if form is None or (image_format is not None and format_named(image_format) is not form):
            wrong = (
                f"{_FIELD} {self.path.name} and image_format {image_format} name two formats; leave image_format out"
            )
            raise ApiError(400, wrong, param="image_format")
        return form.name

    def check_input(self, data: tuple[str, ...]) -> None:
        """Raise ApiError if the result would overwrite an input file of the same request."""
        paths = (unquote(urlsplit(text).path) if text[:5].lower() == "file:" else text for text in data)
        if any(text.startswith(os.sep) and os.path.realpath(text) == str(self.path) for text in paths):
            raise ApiError(400, "the result would be written over its own input; choose another path", param=_FIELD)

    def write(self, entry: Encoded) -> Path:
        """Write a result atomically, and return the path of the file. Create missing folders. The call blocks."""
        file = self.path / f"{uuid4()}{entry.suffix}" if self.folder else self.path
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(file) as part, part.open("wb") as stream:
            for offset in range(0, entry.nbytes, _CHUNK_BYTES):
                stream.write(entry.read(offset, _CHUNK_BYTES))
        return file
