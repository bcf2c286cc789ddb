"""Write arrays to .npz, .npy and JSON files, and structured results to JSON and CSV files."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from io import StringIO
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import SaveError

if TYPE_CHECKING:
    from vllm_mmout.outputs.areas import AreasOutput, FeatureAreas
    from vllm_mmout.outputs.formats import Format
    from vllm_mmout.outputs.raster import RasterOutput
    from vllm_mmout.outputs.structured import StructuredOutput
    from vllm_mmout.outputs.tensor import TensorOutput

_VALUES_PER_CHUNK = 1 << 15
"""Number of values encoded as JSON at a time. Encoding them holds the GIL for 1 to 2 ms."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""Characters that can begin a formula in a spreadsheet. They include the full-width forms of =, +, - and @."""
_RESERVED_NAMES = frozenset({"file", "allow_pickle"})
"""Names that an array in an .npz file cannot have, since they are names of parameters of `numpy.savez`."""


def write_npz(output: TensorOutput, file: BinaryIO, _form: Format) -> None:
    """Write all arrays of an output to a compressed .npz file."""
    save_arrays(file, output.arrays)


def write_raster_npz(output: RasterOutput, file: BinaryIO, _form: Format) -> None:
    """Write a raster to a compressed .npz file: its pixels as ``array``, and its metadata as further arrays."""
    metadata = {
        "nodata": output.nodata,
        "crs": output.crs,
        "transform": output.transform,
        "band_names": [name or "" for name in output.band_names] or None,
        "units": [unit or "" for unit in output.units] or None,
        "scales": output.scales or None,
        "class_names": output.class_names,
        "palette": output.palette,
    }
    arrays = {name: np.asarray(value) for name, value in metadata.items() if value is not None}
    save_arrays(file, {"array": output.array, **arrays})


def write_npy(output: TensorOutput, file: BinaryIO, _form: Format) -> None:
    """Write the only array of an output to an .npy file. Raise SaveError if the output has several arrays."""
    if len(output.arrays) > 1:
        raise SaveError(f".npy holds one array, the output has {len(output.arrays)}; save it as .npz")
    np.save(file, output.array, allow_pickle=False)


def write_json(output: TensorOutput, file: BinaryIO, _form: Format) -> None:
    """Write the arrays of an output as a JSON object, name -> nested lists. NaN and infinities become null."""
    opening = b"{"
    for name, array in output.arrays.items():
        if array.dtype.kind not in "biufUS":
            raise SaveError(f"JSON has no numbers of {array.dtype}; save {name!r} as .npz")
        file.write(opening + msgspec.json.encode(name) + b":")
        file.writelines(_json_chunks(array))
        opening = b","
    file.write(b"}")


def _json_chunks(array: NDArray[Any]) -> Iterator[bytes]:
    """Encode an array as nested JSON lists, and yield the text in chunks. Small chunks hold the GIL only briefly."""
    if array.size <= _VALUES_PER_CHUNK:
        yield msgspec.json.encode(array.tolist())
        return
    step = _VALUES_PER_CHUNK // (array.size // len(array))
    opening = b"["
    for start in range(0, len(array), max(step, 1)):
        yield opening
        if step:
            yield msgspec.json.encode(array[start : start + step].tolist())[1:-1]
        else:
            yield from _json_chunks(array[start])
        opening = b","
    yield b"]"


def save_arrays(file: BinaryIO, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write named arrays to a compressed .npz file. Raise SaveError for a name that .npz cannot hold."""
    for name in arrays:
        if name in _RESERVED_NAMES or "/" in name or "\\" in name:
            raise SaveError(f"an .npz cannot hold an array named {name!r}; rename it")
    np.savez_compressed(file, allow_pickle=False, **dict(arrays))


def write_fields(output: StructuredOutput, file: BinaryIO, _form: Format) -> None:
    """Write the fields of a structured result as indented JSON."""
    file.write(output.model_dump_json(indent=2).encode())


def _as_cell(value: Any) -> Any:
    """Return a value as a CSV cell. Text that a spreadsheet would run as a formula gets a leading apostrophe.

    The characters and the apostrophe follow OWASP's page on CSV injection.
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def write_areas(output: AreasOutput, file: BinaryIO, _form: Format) -> None:
    """Write the area of each class to a CSV table. If features were measured, each class has a row for each feature.

    The last two columns are the nodata pixels and square metres of the feature, or of all. They are the same in all of
    its rows. A feature without classes has a row without a class. Texts cannot run as formulas of a spreadsheet.
    """
    from vllm_mmout.outputs.class_areas import ClassArea  # imports pydantic, which may be missing

    text = StringIO()
    names = csv.writer(text, lineterminator="\n")
    fields = tuple(ClassArea.model_fields)
    names.writerow([*(["feature"] if output.features else []), *fields, "nodata_pixels", "nodata_m2"])
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    tables: list[tuple[list[str], FeatureAreas | AreasOutput]] = [([], output)]
    for name, table in [([name], feature) for name, feature in output.features.items()] or tables:
        nodata = (None, None) if table.nodata is None else (table.nodata.pixels, table.nodata.area_m2)
        rows = [list(area.model_dump().values()) for area in table.classes] or [[None] * len(fields)]
        writer.writerows(map(_as_cell, (*name, *row, *nodata)) for row in rows)
    file.write(text.getvalue().encode())
