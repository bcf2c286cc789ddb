"""Target: where a server writes the result of a request that names its file, below the folder of its operator."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from vllm_mmout.geo import atomic_file
from vllm_mmout.messages import shown
from vllm_mmout.outputs.formats import format_named
from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.options import flag

if TYPE_CHECKING:
    from vllm_mmout.serving.response.result_files import Encoded

_FIELD: Final = "output_path"
_COPIED: Final = 1 << 20
"""Bytes that are written at once."""


@dataclass(frozen=True, slots=True)
class Target:
    """A folder, or a file whose suffix is its format."""

    path: Path
    folder: bool
    """Whether the file gets a name of its own in ``path``."""

    @classmethod
    def below(cls, root: str, text: str) -> Self:
        """Return the target of a client's path, which is relative to the root, or whole and within it.

        Raises:
            ApiError: the path leads elsewhere, also by ".." or a link.

        """
        base = Path(root).resolve()
        try:
            path = (base / text).resolve()
        except (OSError, RuntimeError, ValueError):  # a circle of links, a NUL
            path = Path(os.sep)
        if not path.is_relative_to(base):
            wrong = f"{_FIELD} {shown(text)} does not lie below the folder where this server writes"
            raise ApiError(400, f"{wrong} ({flag('output_root')}); name a path relative to it", param=_FIELD)
        named = not text.endswith(os.sep) and not path.is_dir() and format_named(path.suffix) is not None
        return cls(path, folder=not named)

    def format_of(self, asked: str | None) -> str | None:
        """Return the format to make; the suffix of a file says it, and must agree with what the client asks."""
        if self.folder:
            return asked
        form = format_named(self.path.suffix)
        if form is None or (asked is not None and format_named(asked) is not form):
            wrong = f"{_FIELD} {self.path.name} and image_format {asked} name two formats; leave image_format out"
            raise ApiError(400, wrong, param="image_format")
        return form.name

    def check_input(self, data: tuple[str, ...]) -> None:
        """Raise an ApiError where the result would replace one of its inputs: whole paths, ``file:`` URLs, others."""
        paths = (unquote(urlsplit(text).path) if text[:5].lower() == "file:" else text for text in data)
        if any(text.startswith(os.sep) and os.path.realpath(text) == str(self.path) for text in paths):
            raise ApiError(400, "the result would be written over its own input; choose another path", param=_FIELD)

    def write(self, entry: Encoded) -> Path:
        """Write a result, whole or not at all, and return its file; folders are made. Blocks."""
        file = self.path / f"{uuid4()}{entry.suffix}" if self.folder else self.path
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(file) as part, part.open("wb") as opened:
            for at in range(0, entry.nbytes, _COPIED):
                opened.write(entry.read(at, _COPIED))
        return file
