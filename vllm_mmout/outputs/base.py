"""Base classes of all outputs, which save a result to a file, and Source, the input of a result."""

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
    """Base class of results that can be written to a file or to bytes."""

    output_kinds: ClassVar[tuple[str, ...]] = ()
    """Kinds of output that the class belongs to, the most specific first. They are keys of `Format.writers`."""
    formats: ClassVar[dict[str, str]] = {}
    """Suffix of a file name -> name of the format. The default format comes first."""

    def save(self, path: str | PurePath, **options: Any) -> PurePath:
        """Write the result to a file. The suffix of its name selects the format.

        The file appears only when it is complete. After an error an existing file is unchanged, and no new file is
        left. A GeoTIFF of classes gets a second file, ``.aux.xml``, from which GDAL and QGIS read the names of the
        classes. If a GeoTIFF is overwritten, its old ``.aux.xml`` is replaced or removed.

        Args:
            path: path of the file, or its address in a bucket (``s3://bucket/mask.tif``, ``gs://``, ``az://``). A local
                folder must exist.
            options: options of the format, as in `to_bytes`.

        Returns:
            The path. For an address in a bucket, a path object with the name, suffix and text of the address.

        Raises:
            SaveError: the suffix is unknown (the message lists the known suffixes), the format cannot hold the result,
                or the file cannot be written.

        """
        target = place_of(path)
        if (name := self.formats.get(target.suffix.lower())) is None:
            raise unknown_suffix(target, self.formats)
        with atomic_file(target, self._sidecars(name)) as part:
            self._write(part, name, options)
        return target

    def to_bytes(self, format: str | None = None, **options: Any) -> bytes:  # noqa: A002 - Pillow's word for it
        """Return the result as the bytes of a file.

        ``format`` is a name or a suffix such as "png". None selects the default format of the class. Raises SaveError
        if the format is unknown or cannot hold the result.
        """
        return self._encode(self._format(format), options)

    def write_to(self, file: BinaryIO, format: str | None = None, **options: Any) -> None:  # noqa: A002 - as to_bytes
        """Write the result to an open file, in pieces if the format supports that. The arguments are as in `to_bytes`.

        Raises SaveError if the format is unknown or cannot hold the result.
        """
        name = self._format(format)
        if type(self)._encode is Savable._encode:  # noqa: SLF001 - classes with formats of their own override it
            self._formatted(file, name, options)
        else:
            file.write(self._encode(name, options))

    def _format(self, text: str | None) -> str:
        names = dict.fromkeys(self.formats.values())
        if text is None:
            return next(iter(names))
        form = format_named(text)
        name = self.formats.get(f".{text.lower().removeprefix('.')}", text.lower() if form is None else form.name)
        if name not in names:
            raise SaveError(f"{type(self).__name__} cannot be written as {text!r} (known: {', '.join(names)})")
        return name

    def _write(self, path: Path, name: str, options: dict[str, Any]) -> None:
        """Write the result to a new file. Classes that can write a format in pieces override this."""
        path.write_bytes(self._encode(name, options))

    def _sidecars(self, name: str) -> Mapping[str, bytes | None]:
        """Return the sidecar files of a file in the format ``name``.

        The result maps a suffix, appended to the file's name, to the content, or to None for a file to be removed.
        """
        return {}

    def _encode(self, name: str, options: dict[str, Any]) -> bytes:
        """Return the result as bytes in a format of `formats`. Subclasses with formats of their own override this."""
        buffer = BytesIO()
        self._formatted(buffer, name, options)
        return buffer.getvalue()

    def _formatted(self, file: BinaryIO, name: str, options: dict[str, Any]) -> None:
        """Write the result to an open file, in a format of the table `FORMATS`."""
        if name not in FORMATS:
            raise NotImplementedError(f"{type(self).__name__} must define _encode(name, options)")
        FORMATS[name].write(self, file, options)


class MediaOutput(Savable):
    """Base class of results that consist of pixels or numbers. An output is equal only to itself."""

    path: str | None = None
    """Path of the file with the result, or None if the request did not ask for a file."""

    @property
    def nbytes(self) -> int:
        """Number of bytes of the values as arrays, computed from shape and dtype. It is 0 without arrays."""
        return 0

    partial: bool = False
    """True if the model's tokens ended before the result was complete. It holds the part decoded until then."""
    span: tuple[int, int] | None = None
    """(start, stop) of the output tokens that the result was decoded from, including text tokens between them.
    None if it was not decoded from tokens."""
    assumed: tuple[str, ...] = ()
    """Assumptions about the input. Each sentence names the fact, the assumed value, and how to state another value."""


def unknown_suffix(target: PurePath, formats: Iterable[str], hint: str = "") -> SaveError:
    """Return the error for a file name whose suffix selects no format. ``hint`` is added to the list of formats."""
    fault = f"suffix {target.suffix!r} is unknown" if target.suffix else "the name has no suffix"
    return SaveError(f"cannot save {target}: {fault} (known: {', '.join(formats)}{hint})")


def as_numpy(value: Any) -> NDArray[Any]:
    """Return a NumPy array of a tensor or array, sharing its memory if possible. torch is not imported.

    bfloat16 becomes float32, which is exact, since NumPy has no bfloat16.
    """
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            value = value.float()
    return np.asarray(value)


_NOT_OF_THE_RESULT = frozenset(
    {"TIFFTAG_SOFTWARE", "TIFFTAG_IMAGEDESCRIPTION", "TIFFTAG_DOCUMENTNAME", "TIFFTAG_HOSTCOMPUTER"}
)
"""Names of metadata items that describe the file of the input. They are not copied to the result."""


ASSUMED = "MMOUT_ASSUMED"
"""Name of the metadata item that lists the assumptions about an output's input, a sentence on each line."""


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Facts about an input that are needed to place an output on it. Equal only to itself."""

    size: tuple[int, int] | None = None
    """(height, width) of the user's input in pixels, by default the shape of ``valid``. None without pixels."""
    seen: tuple[int, int] | None = None
    """(height, width) of the input after it was resized for the model. None if it was not resized."""
    georeference: Georeference | None = None
    """Georeference of the input's pixels."""
    valid: NDArray[np.bool_] | None = None
    """Mask [height, width], False where the input lacks an observation. None if all pixels are valid."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Metadata items of the input (date, sensor) that are copied to its outputs."""
    picture: Callable[[], Image] | None = None
    """Function that returns an RGB picture of the input, of ``size``. It is called when an output is drawn over it."""
    assumed: tuple[str, ...] = ()
    """Assumptions about the input, see `MediaOutput.assumed`."""

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
        """Return a copy with metadata items for the model, the processor and the assumptions about the input."""
        items = {"MMOUT_MODEL": model, "MMOUT_PROCESSOR": processor}
        if self.assumed:
            items[ASSUMED] = "\n".join(self.assumed)
        # An input that is itself a model's output may have assumptions already, which do not apply here.
        others = {name: text for name, text in self.metadata.items() if name != ASSUMED}
        return replace(self, metadata={**others, **items})

    def lay(self, output: Any) -> Any:
        """Call the output's method ``placed`` with this input, if it has one. Set ``assumed`` of a `MediaOutput`."""
        if hasattr(output, "placed"):
            output = output.placed(self)
        if isinstance(output, MediaOutput):
            output.assumed = self.assumed
        return output


def masked(array: NDArray[Any], nodata: float | None, valid: NDArray[np.bool_]) -> tuple[NDArray[Any], float | None]:
    """Return a copy of ``array`` [bands, height, width] with nodata where ``valid`` is False, and the nodata value.

    ``valid`` is bool [height, width]. If ``nodata`` is None, a value is chosen that no pixel has. If all pixels are
    valid, ``array`` itself and ``nodata`` are returned.
    """
    if valid.all():
        return array, nodata
    pixels = array.astype(np.uint8) if array.dtype == np.bool_ else array.copy()
    value = _free_value(pixels) if nodata is None else nodata
    pixels[:, ~valid] = value
    return pixels, value


def resized_mask(valid: NDArray[np.bool_], size: tuple[int, int]) -> NDArray[np.bool_]:
    """Resize a mask [height, width] to ``size``. Each new pixel takes the value of the old pixel at its centre."""
    if valid.shape == size:
        return valid
    rows, cols = (_nearest(old, new) for old, new in zip(valid.shape, size, strict=True))
    return valid[rows[:, np.newaxis], cols]


def merged(source: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Return the result's metadata items, with the input's items that also apply to the result."""
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
    """Return, for each of ``new`` pixels along an axis, the index of the old pixel at its centre. Exact."""
    return (2 * np.arange(new) + 1) * old // (2 * new)


def _free_value(pixels: NDArray[Any]) -> float:
    """Return a value to use as nodata: NaN for floating point, else the largest integer if no pixel has it."""
    if pixels.dtype.kind == "f":
        return math.nan
    largest = int(np.iinfo(pixels.dtype).max)
    if (pixels == largest).any():
        raise InputError(
            f"the result is {pixels.dtype} without a nodata value, and uses {largest}, which would become nodata;"
            " give the output a nodata of its own"
        )
    return largest
