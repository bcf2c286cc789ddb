"""What all outputs have in common: a path, bytes in a format, and a file by the suffix of its name."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from vllm_mmout.errors import SaveError
from vllm_mmout.geo.raster.files import whole_file
from vllm_mmout.outputs.formats import FORMATS, format_named

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray


class Savable:
    """What can be written to a file and to bytes."""

    output_kinds: ClassVar[tuple[str, ...]] = ()
    """What it is, as `vllm_mmout.outputs.formats.Format.writers` call it, the most special first."""
    formats: ClassVar[dict[str, str]] = {}
    """Suffix of a file name -> name of the format, the usual one first."""

    def save(self, path: str | Path, **options: Any) -> Path:
        """Write the result to a file; the format follows from the suffix.

        The file appears when it is whole: after an error there is none, and an older one is left as it was. Beside a
        GeoTIFF of classes lies an ``.aux.xml``, where GDAL and QGIS look for their names; one that described an older
        file goes with it.

        Args:
            path: where to; the folder must exist.
            options: options of the format, as in `to_bytes`.

        Returns:
            The path.

        Raises:
            SaveError: the suffix is unknown (the known ones are listed), the format cannot hold the result, or the
                file cannot be written.

        """
        target = Path(path)
        name = self.formats.get(target.suffix.lower())
        if name is None:
            raise unknown_suffix(target, self.formats)
        with whole_file(target, self._sidecars(name)) as part:
            self._write(part, name, options)
        return target

    def to_bytes(self, format: str | None = None, **options: Any) -> bytes:  # noqa: A002 - Pillow's word for it
        """The result as the bytes of a file.

        Args:
            format: a format or a suffix, as "png"; None for the usual one.
            options: options of the format.

        Raises:
            SaveError: the format is unknown or cannot hold the result.

        """
        return self._encode(self._format(format), options)

    def _format(self, asked: str | None) -> str:
        """The name of a format that is given by name or suffix."""
        names = dict.fromkeys(self.formats.values())
        if asked is None:
            return next(iter(names))
        form = format_named(asked)
        name = self.formats.get(f".{asked.lower().removeprefix('.')}", asked.lower() if form is None else form.name)
        if name not in names:
            raise SaveError(f"{type(self).__name__} cannot be written as {asked!r} (known: {', '.join(names)})")
        return name

    def _write(self, path: Path, name: str, options: dict[str, Any]) -> None:
        """Write the result to a new file; a format that need not be whole in memory overrides this."""
        path.write_bytes(self._encode(name, options))

    def _sidecars(self, name: str) -> Mapping[str, bytes | None]:
        """What lies beside a file of that format: suffix behind its name -> content, None for a file of another one."""
        return {}

    def _encode(self, name: str, options: dict[str, Any]) -> bytes:
        """The bytes of the result in a format of `formats`; formats of an author's own override this."""
        if name not in FORMATS:
            raise NotImplementedError(f"{type(self).__name__} must define _encode(name, options)")
        buffer = BytesIO()
        FORMATS[name].write(self, buffer, options)
        return buffer.getvalue()


class MediaOutput(Savable):
    """A result that is pixels or numbers; two outputs are equal only if they are the same object."""

    path: str | None = None
    """The file that holds the result, where the request asked for one."""
    partial: bool = False
    """Whether the stream of tokens ended inside it: it holds what had come until then."""
    span: tuple[int, int] | None = None
    """The output tokens that it was decoded from, ``token_ids[start:stop]``, text inside it among them; None: it was
    not decoded from tokens."""


def unknown_suffix(target: Path, formats: Iterable[str], hint: str = "") -> SaveError:
    """The error of a file name that tells no format.

    Args:
        target: the name.
        formats: the suffixes that would.
        hint: what else could be done.

    """
    wrong = f"suffix {target.suffix!r} is that of no format" if target.suffix else "no suffix tells the format"
    return SaveError(f"cannot save {target}: {wrong} (known: {', '.join(formats)}{hint})")


def as_numpy(value: Any) -> NDArray[Any]:
    """An array of what a decoder hands over, sharing its memory where it can; torch is not imported.

    Args:
        value: array, sequence, or torch tensor of any device. bfloat16, which NumPy does not have, becomes float32,
            exactly.

    """
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            value = value.float()
    return np.asarray(value)
