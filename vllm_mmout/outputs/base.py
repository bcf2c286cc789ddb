"""Base classes of model outputs that can be saved to files, and `Source`, which describes the input of an output."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError, OptionError, SaveError
from vllm_mmout.geo import atomic_file, atomic_folder, is_zarr, nearest_pixels, place_of
from vllm_mmout.outputs.formats import FORMATS, format_named, format_of_file, is_folder_suffix, suffix_of

if TYPE_CHECKING:
    from PIL.Image import Image

    from vllm_mmout.geo import Georeference, PlacedArea
    from vllm_mmout.outputs.input_picture import InputPicture


class Savable:
    """Base class of results that can be written to a file or to bytes."""

    output_kinds: ClassVar[tuple[str, ...]] = ()
    """Kinds of the output, such as "raster", in order of preference. A file format uses the first kind it supports."""
    takes_area: ClassVar[bool] = False
    """True if an output of this class can be cut to the request's area of interest (`Source.area`)."""
    formats: ClassVar[dict[str, str]] = {}
    """Maps file suffixes such as ".tif" to names of formats. The first entry is the default format."""

    def save(self, path: str | PurePath, **options: Any) -> PurePath:
        """Write the result to a file. The suffix of its name selects the format.

        The file appears only when it is complete. After an error an existing file is unchanged, and no new file is
        left. A GeoTIFF of classes gets a second file, ``.aux.xml``, from which GDAL reads the names of the classes.
        On a local disk it also gets ``.qml``, the style that QGIS loads. If a GeoTIFF is overwritten, its old
        ``.aux.xml`` and ``.qml`` are replaced or removed. A style that a user has saved in QGIS is kept.

        Args:
            path: path of the file, or of the folder of a Zarr store (``.zarr``), or the address of a file in a bucket
                (``s3://bucket/mask.tif``, ``gs://``, ``az://``). The local folder of the file must exist.
            options: options of the format, as in `to_bytes`.

        Returns:
            The path. For an address in a bucket, a path object with the name, suffix and text of the address.

        Raises:
            SaveError: the suffix is unknown (the message lists the known suffixes), the format cannot hold the result,
                or the file cannot be written.

        """
        target = place_of(path)
        if (name := format_of_file(target, self.formats)) is None:
            raise unknown_suffix(target, self.formats)
        sidecars, is_folder = self._sidecars(name, target), is_folder_suffix(suffix_of(target))
        with atomic_folder(target, is_zarr) if is_folder else atomic_file(target, sidecars) as part:
            self._write(part, name, options)
        return target

    def to_bytes(self, format: str | None = None, **options: Any) -> bytes:  # noqa: A002 - Pillow's word for it
        """Return the result as the bytes of a file.

        ``format`` is a name or a suffix such as "png". None selects the default format of the class. Raises SaveError
        if the format is unknown or cannot hold the result.
        """
        return self._encode(self._format(format), options)

    def write_to(self, file: BinaryIO, format: str | None = None, **options: Any) -> None:  # noqa: A002 - as to_bytes
        """Write the result to an open binary file, in chunks if the format supports that.

        The arguments are those of `to_bytes`. Raises SaveError if the format is unknown or cannot hold the result.
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
        """Write the result to a new file or an empty folder. Classes that can write in chunks override this."""
        if path.is_dir():
            FORMATS[name].write(self, path, options)
        else:
            path.write_bytes(self._encode(name, options))

    def _sidecars(self, name: str, target: PurePath) -> Mapping[str, bytes | None]:
        """Return the contents of sidecar files, such as GDAL's ``.aux.xml``, that belong to a saved result.

        They are by file name. ``target`` is the file of the result, and ``name`` its format. The value None means that
        the sidecar file is to be removed.
        """
        return {}

    def _encode(self, name: str, options: dict[str, Any]) -> bytes:
        """Encode the result in the format ``name``. Subclasses with formats that are not in `FORMATS` override this."""
        buffer = BytesIO()
        self._formatted(buffer, name, options)
        return buffer.getvalue()

    def _formatted(self, file: BinaryIO, name: str, options: dict[str, Any]) -> None:
        """Write the result to an open file in the format ``name``, with the writer that `FORMATS` lists."""
        if name not in FORMATS:
            raise NotImplementedError(f"{type(self).__name__} must define _encode(name, options)")
        FORMATS[name].write(self, file, options)


class MediaOutput(Savable):
    """Base class of model outputs that consist of pixels or numbers: pictures, rasters, arrays, sounds and videos.

    Outputs compare by identity: an output is equal only to itself.
    """

    path: str | None = None
    """Path of the file that the output was written to, or None if the request did not ask for a file."""

    @property
    def nbytes(self) -> int:
        """Size of the output's arrays in memory, in bytes. It is 0 for outputs without arrays."""
        return 0

    partial: bool = False
    """True if the model stopped before the output was complete. The output then holds the part decoded so far."""
    span: tuple[int, int] | None = None
    """Range (start, stop) of the model's output tokens from which this output was decoded. The range may include text
    tokens. None if this output was not decoded from tokens."""
    assumed: tuple[str, ...] = ()
    """Assumptions made about the input, such as the scale of its values, one sentence each. A sentence names the
    assumed value, and tells the user how to state another value."""
    input_picture: InputPicture | None = None
    """Function that reads the input again and returns a picture of it. None if the input can be read only once."""


def unknown_suffix(target: PurePath, formats: Iterable[str], hint: str = "") -> SaveError:
    """Return the SaveError for a file name with an unknown suffix. The message lists ``formats``, then ``hint``."""
    fault = f"suffix {suffix_of(target)!r} is unknown" if target.suffix else "the name has no suffix"
    return SaveError(f"cannot save {target}: {fault} (known: {', '.join(formats)}{hint})")


def as_numpy(value: Any) -> NDArray[Any]:
    """Convert a tensor or array to NumPy, without a copy if possible. torch is not imported.

    bfloat16 becomes float32, which is exact, since NumPy has no bfloat16.
    """
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            value = value.float()
    return np.asarray(value)


_INPUT_FILE_TAGS = frozenset(
    {"TIFFTAG_SOFTWARE", "TIFFTAG_IMAGEDESCRIPTION", "TIFFTAG_DOCUMENTNAME", "TIFFTAG_HOSTCOMPUTER"}
)
"""TIFF tags that describe the input's file. They are not copied to an output."""


ASSUMED = "MMOUT_ASSUMED"
"""Key of the metadata item that lists the assumptions made about the input, one per line."""


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Description of an input: size, georeference, valid pixels and metadata. Outputs receive these values.

    A source is equal only to itself.
    """

    size: tuple[int, int] | None = None
    """(height, width) of the user's input in pixels, by default the shape of ``valid``. None for an input without
    pixels."""
    seen: tuple[int, int] | None = None
    """(height, width) of the input after it was resized for the model. None if it was not resized."""
    georeference: Georeference | None = None
    """Coordinate system and transform of the input's pixels, or None if they are unknown."""
    valid: NDArray[np.bool_] | None = None
    """Mask, bool [height, width], False where the input lacks data. None if all pixels are valid."""
    area: PlacedArea | None = None
    """The request's area of interest in pixels of the input, or None. The mask ``valid`` is False outside the area."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Metadata items of the input (date, sensor) that are copied to its outputs."""
    picture: Callable[[], Image] | None = None
    """Function that returns an RGB picture of the input, in the input's size. Outputs are drawn over this picture."""
    input_picture: InputPicture | None = None
    """Function that reads the input again and returns a picture of it, for figures of the output. May be None."""
    assumed: tuple[str, ...] = ()
    """Assumptions made when the input was read, one sentence each. `lay` copies the assumptions to the output."""

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
        """Return a copy of this `Source` with the model, the processor and the assumptions added to its metadata."""
        items = {"MMOUT_MODEL": model, "MMOUT_PROCESSOR": processor}
        if self.assumed:
            items[ASSUMED] = "\n".join(self.assumed)
        # An input that is itself a model's output may have assumptions already, which do not apply here.
        others = {name: text for name, text in self.metadata.items() if name != ASSUMED}
        return replace(self, metadata={**others, **items})

    def lay(self, output: Any) -> Any:
        """Return a model's output laid on this input, that is, with the input's size, mask and georeference.

        An output without a method ``placed`` only gets the assumptions that were made about the input.

        Raises OptionError if the request has an area of interest, to which the output cannot be cut.
        """
        if self.area is not None and not getattr(output, "takes_area", False):
            raise OptionError(
                f"aoi cannot cut a {type(output).__name__}: only rasters, polygons, areas and boxes are cut; give the"
                " extent as bbox=..., or choose another processor",
                param="aoi",
            )
        if hasattr(output, "placed"):
            output = output.placed(self)
        if isinstance(output, MediaOutput):
            output.assumed, output.input_picture = self.assumed, self.input_picture
        return output


def masked(array: NDArray[Any], nodata: float | None, valid: NDArray[np.bool_]) -> tuple[NDArray[Any], float | None]:
    """Replace the invalid pixels by nodata in a copy of ``array``. Return the copy and the nodata value.

    ``array`` is [bands, height, width]. ``valid`` is bool [height, width], False at invalid pixels. If ``nodata`` is
    None, a value is chosen that no pixel has. If all pixels are valid, return ``array`` itself and ``nodata``.
    """
    if valid.all():
        return array, nodata
    pixels = array.astype(np.uint8) if array.dtype == np.bool_ else array.copy()
    value = _free_value(pixels) if nodata is None else nodata
    pixels[:, ~valid] = value
    return pixels, value


def resized_mask(valid: NDArray[np.bool_], size: tuple[int, int]) -> NDArray[np.bool_]:
    """Resize a mask [height, width] to ``size`` by nearest neighbour."""
    if valid.shape == size:
        return valid
    rows, cols = (nearest_pixels(old, new) for old, new in zip(valid.shape, size, strict=True))
    return valid[rows[:, np.newaxis], cols]


def merged(source: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Add a result's metadata ``own`` to its input's metadata ``source``. Drop tags about the input's file."""
    return {**{name: text for name, text in source.items() if name not in _INPUT_FILE_TAGS}, **own}


def _checked_size(name: str, size: object) -> tuple[int, int] | None:
    if size is None:
        return None
    if isinstance(size, tuple | list) and len(size) == 2 and all(_is_count(number) for number in size):
        return (int(size[0]), int(size[1]))
    raise InputError(f"{name} must be (height, width), two integers of 1 or more, got {size!r}")


def _is_count(number: object) -> bool:
    return isinstance(number, int | np.integer) and not isinstance(number, bool) and int(number) >= 1


def _free_value(pixels: NDArray[Any]) -> float:
    """Return an unused value for nodata: NaN for floating-point pixels, or the largest integer of an integer dtype.

    Raise InputError if a pixel has the largest integer.
    """
    if pixels.dtype.kind == "f":
        return math.nan
    largest = int(np.iinfo(pixels.dtype).max)
    if (pixels == largest).any():
        raise InputError(
            f"the result is {pixels.dtype} without a nodata value, and uses {largest}, which would become nodata;"
            " give the output a nodata of its own"
        )
    return largest
