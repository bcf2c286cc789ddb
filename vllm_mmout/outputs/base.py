"""What all outputs have in common: a file by the suffix of its name, and the input that they were made from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError, SaveError
from vllm_mmout.geo import atomic_file, place_of
from vllm_mmout.outputs.formats import FORMATS, format_named

if TYPE_CHECKING:
    from PIL.Image import Image

    from vllm_mmout.geo import Georeference


class Savable:
    """What can be written to a file and to bytes."""

    output_kinds: ClassVar[tuple[str, ...]] = ()
    """What it is, as `vllm_mmout.outputs.formats.Format.writers` call it, the most special first."""
    formats: ClassVar[dict[str, str]] = {}
    """Suffix of a file name -> name of the format, the usual one first."""

    def save(self, path: str | PurePath, **options: Any) -> PurePath:
        """Write the result to a file; the format follows from the suffix.

        The file appears when it is whole: after an error there is none, and an older one is left as it was. Beside a
        GeoTIFF of classes lies an ``.aux.xml``, where GDAL and QGIS look for their names; one that described an older
        file goes with it.

        Args:
            path: where to, also in a bucket (``s3://bucket/mask.tif``, ``gs://``, ``az://``); a folder on this
                machine must exist.
            options: options of the format, as in `to_bytes`.

        Returns:
            The path, or of an address in a bucket what has its name and suffix, and as text is that.

        Raises:
            SaveError: the suffix is unknown (the known ones are listed), the format cannot hold the result, or the
                file cannot be written.

        """
        target = place_of(path)
        if (name := self.formats.get(target.suffix.lower())) is None:
            raise unknown_suffix(target, self.formats)
        with atomic_file(target, self._sidecars(name)) as part:
            self._write(part, name, options)
        return target

    def to_bytes(self, format: str | None = None, **options: Any) -> bytes:  # noqa: A002 - Pillow's word for it
        """The result as the bytes of a file, of a format or suffix as "png", None for the usual one.

        SaveError: the format is unknown or cannot hold the result.
        """
        return self._encode(self._format(format), options)

    def write_to(self, file: BinaryIO, format: str | None = None, **options: Any) -> None:  # noqa: A002 - as to_bytes
        """Write the bytes of `to_bytes` to an open file, piece by piece where the format allows it.

        SaveError: the format is unknown or cannot hold the result.
        """
        name = self._format(format)
        if type(self)._encode is Savable._encode:  # noqa: SLF001 - of this class: formats of an author's override it
            self._formatted(file, name, options)
        else:
            file.write(self._encode(name, options))

    def _format(self, asked: str | None) -> str:
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
        buffer = BytesIO()
        self._formatted(buffer, name, options)
        return buffer.getvalue()

    def _formatted(self, file: BinaryIO, name: str, options: dict[str, Any]) -> None:
        """Write the result in a format of the table to an open file."""
        if name not in FORMATS:
            raise NotImplementedError(f"{type(self).__name__} must define _encode(name, options)")
        FORMATS[name].write(self, file, options)


class MediaOutput(Savable):
    """A result that is pixels or numbers; two outputs are equal only if they are the same object."""

    path: str | None = None
    """The file that holds the result, where the request asked for one."""

    @property
    def nbytes(self) -> int:
        """Bytes of the values as arrays, from shape and dtype; 0 if the result has no arrays."""
        return 0

    partial: bool = False
    """Whether the stream of tokens ended inside it: it holds what had come until then."""
    span: tuple[int, int] | None = None
    """The output tokens that it was decoded from, ``token_ids[start:stop]``, text inside it among them; None: it was
    not decoded from tokens."""
    assumed: tuple[str, ...] = ()
    """What was assumed about the input: sentences that name the fact, what was taken, and how to say it otherwise."""


def unknown_suffix(target: PurePath, formats: Iterable[str], hint: str = "") -> SaveError:
    """The error of a file name that tells none of the known formats; ``hint`` says what else could be done."""
    wrong = f"suffix {target.suffix!r} is that of no format" if target.suffix else "no suffix tells the format"
    return SaveError(f"cannot save {target}: {wrong} (known: {', '.join(formats)}{hint})")


def as_numpy(value: Any) -> NDArray[Any]:
    """An array of what a decoder hands over, sharing its memory where it can; torch is not imported.

    bfloat16, which NumPy does not have, becomes float32, exactly.
    """
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            value = value.float()
    return np.asarray(value)


_NOT_OF_THE_RESULT = frozenset(
    {"TIFFTAG_SOFTWARE", "TIFFTAG_IMAGEDESCRIPTION", "TIFFTAG_DOCUMENTNAME", "TIFFTAG_HOSTCOMPUTER"}
)
"""Items that speak of the input's file, not of what was observed."""


ASSUMED = "MMOUT_ASSUMED"
"""The metadata item of an output that tells what was assumed about its input, one sentence a line."""


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """What an output needs to know to be laid on its input; two are equal only if they are the same object."""

    size: tuple[int, int] | None = None
    """(height, width) of the input in pixels, as the user gave it; that of ``valid`` if left out. None: no pixels."""
    seen: tuple[int, int] | None = None
    """(height, width) of what the model saw, where it was resized on the way; None: the same as ``size``."""
    georeference: Georeference | None = None
    """Where the input's pixels lie."""
    valid: NDArray[np.bool_] | None = None
    """[height, width], False where the input has no observation; None: everywhere valid."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Items of the input (date, sensor) that its outputs carry on."""
    picture: Callable[[], Image] | None = None
    """Draws the input (RGB, of ``size``) for outputs that are shown over it; called when one is shown."""
    assumed: tuple[str, ...] = ()
    """What was assumed about the input, see `MediaOutput.assumed`."""

    def __post_init__(self) -> None:
        for name in ("size", "seen"):
            object.__setattr__(self, name, _checked_size(name, getattr(self, name)))
        if self.valid is None:
            return
        if self.valid.dtype != np.bool_ or self.valid.ndim != 2:
            raise InputError(f"valid must be bool [height, width], got {self.valid.dtype} {list(self.valid.shape)}")
        if self.size is None:
            object.__setattr__(self, "size", _checked_size("size", self.valid.shape))
        if self.valid.shape != self.size:
            raise InputError(
                f"valid must have the input's size {self.size}, got {self.valid.shape}; give the mask of that input"
            )

    def made_by(self, model: str, processor: str) -> Source:
        """Return the source with items that name model and processor, and tell what was assumed, for its outputs."""
        own = {"MMOUT_MODEL": model, "MMOUT_PROCESSOR": processor}
        if self.assumed:
            own[ASSUMED] = "\n".join(self.assumed)
        others = {name: text for name, text in self.metadata.items() if name != ASSUMED}  # of the model before
        return replace(self, metadata={**others, **own})

    def lay(self, output: Any) -> Any:
        """Return an output laid on the input, if its class can be; it knows what was assumed about the input."""
        if hasattr(output, "placed"):
            output = output.placed(self)
        if isinstance(output, MediaOutput):
            output.assumed = self.assumed
        return output


def masked(array: NDArray[Any], nodata: float | None, valid: NDArray[np.bool_]) -> tuple[NDArray[Any], float | None]:
    """A copy of [bands, height, width] with nodata where ``valid``, bool [height, width], is False; and its nodata.

    Without a nodata one is found that no pixel has.
    """
    if valid.all():
        return array, nodata
    pixels = array.astype(np.uint8) if array.dtype == np.bool_ else array.copy()
    value = _free_value(pixels) if nodata is None else nodata
    pixels[:, ~valid] = value
    return pixels, value


def resized_mask(valid: NDArray[np.bool_], size: tuple[int, int]) -> NDArray[np.bool_]:
    """A mask [height, width] of the same extent in another size: each pixel takes the one that its centre lies in."""
    if valid.shape == size:
        return valid
    rows, cols = (_nearest(old, new) for old, new in zip(valid.shape, size, strict=True))
    return valid[rows[:, np.newaxis], cols]


def merged(source: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """The items of the input that hold for the result as well, under those of the result."""
    return {**{name: text for name, text in source.items() if name not in _NOT_OF_THE_RESULT}, **own}


def _checked_size(name: str, size: object) -> tuple[int, int] | None:
    if size is None:
        return None
    if isinstance(size, tuple | list) and len(size) == 2 and all(_is_count(number) for number in size):
        return (int(size[0]), int(size[1]))
    raise InputError(f"{name} must be (height, width), two integers of 1 or more, got {size!r}")


def _is_count(number: object) -> bool:
    return isinstance(number, int | np.integer) and not isinstance(number, bool) and int(number) >= 1


def _nearest(old: int, new: int) -> NDArray[np.intp]:
    """For each of ``new`` pixels along an axis the one of ``old`` that its centre lies in, in exact arithmetic."""
    return (2 * np.arange(new) + 1) * old // (2 * new)


def _free_value(pixels: NDArray[Any]) -> float:
    """A value that can mean nodata: NaN, or the largest integer if no pixel has it."""
    if pixels.dtype.kind == "f":
        return math.nan
    largest = int(np.iinfo(pixels.dtype).max)
    if (pixels == largest).any():
        raise InputError(
            f"the result is {pixels.dtype}, has no nodata, and uses {largest}, which would mean it;"
            " give the output a nodata of its own"
        )
    return largest
