"""Where results go: the files that ``-o`` means, and the formats that their suffixes mean."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vllm_mmout.client.job import Output
from vllm_mmout.errors import OptionError, SaveError
from vllm_mmout.outputs.sidecars import geotiff_sidecars
from vllm_mmout.raster.atomic import whole_file

FORMATS = {
    ".tif": "tiff",
    ".tiff": "tiff",
    ".png": "png",
    ".webp": "webp",
    ".jpg": "jpeg",
    ".jpeg": "jpeg",
    ".npz": "npz",
    ".json": "json",
    ".geojson": "json",
}
"""Suffix -> ``output_format`` of a request."""
_SAME = {"geojson": "json"}
"""What a result may be called that was asked for under another name."""


@dataclass(frozen=True, slots=True)
class Target:
    """What ``-o`` names."""

    path: Path
    folder: bool
    """Whether results lie in it, under the name of their input."""

    @classmethod
    def of(cls, out: str) -> Target:
        """The target of a text.

        Raises:
            OptionError: it has no suffix, and is no folder.
            SaveError: there is no folder for it.

        """
        path = Path(out)
        if path.is_dir() or out.endswith(os.sep):
            return cls(path, folder=True)
        if not path.parent.is_dir():
            raise SaveError(f"-o {out}: there is no folder {path.parent}; make it first")
        if not path.suffix:
            raise OptionError(
                f"-o {out} has no suffix, which tells the format (.tif, .png, ...); for a folder write {out}/"
            )
        return cls(path, folder=False)

    def output_format(self, asked: str | None) -> str | None:
        """The ``output_format`` to ask for; None: the usual one.

        Args:
            asked: one that a user names beside ``-o``.

        Raises:
            OptionError: it is not that of the suffix, or the suffix has none.

        """
        suffix = self.path.suffix.lower()
        known = None if self.folder else FORMATS.get(suffix)
        if asked is None and known is None and not self.folder:
            raise OptionError(
                f"-o {self.path}: a server makes no {suffix} (known: {', '.join(FORMATS)}); choose one of these, or"
                " name the format with --output-format"
            )
        if asked is not None and known is not None and FORMATS.get(f".{asked.lower()}", asked.lower()) != known:
            raise OptionError(
                f"-o {self.path} names {known}, and --output-format is {asked}; leave --output-format out"
            )
        return asked or known

    def files(self, stem: str, outputs: Sequence[Output]) -> list[Path]:
        """The file of each result, as ``vllm-mmout run`` names them.

        Args:
            stem: name of the input without its suffix, for a folder.
            outputs: the results.

        Raises:
            OptionError: the suffix is of another format than the result.
            SaveError: the folder cannot be made.

        """
        for output in outputs:
            self._check(output)
        several = len(outputs) > 1
        if not self.folder:
            named = [f"{self.path.stem}-{output.processor}{self.path.suffix}" for output in outputs]
            return [self.path.with_name(name) for name in named] if several else [self.path] * len(outputs)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SaveError(f"cannot make the folder {self.path}: {error.strerror}") from error
        stem = stem or "scene"
        return [
            self.path / f"{stem}-{output.processor}{_suffix(output)}"
            if several
            else self.path / f"{stem}{_suffix(output)}"
            for output in outputs
        ]

    def _check(self, output: Output) -> None:
        known = None if self.folder else FORMATS.get(self.path.suffix.lower())
        made = _SAME.get(output.output_format, output.output_format)
        if known not in (None, made):
            raise OptionError(
                f"the result is {output.output_format}, and -o {self.path} names {known}; name a file that ends in"
                f" {_suffix(output)}"
            )


def place(part: Path, target: Path, output: Output) -> None:
    """Give a whole download its name, and a GeoTIFF the names of its classes in a file beside it.

    Raises:
        SaveError: it cannot be given its name.

    """
    sidecars = geotiff_sidecars(output.class_names) if output.output_format == "tiff" else None
    with whole_file(target, sidecars) as hidden:
        part.replace(hidden)


def _suffix(output: Output) -> str:
    """The usual suffix of a result's format."""
    if output.output_format == "geojson":
        return ".geojson"
    return next((suffix for suffix, known in FORMATS.items() if known == output.output_format), ".bin")
