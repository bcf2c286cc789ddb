"""Arrays by name, as NumPy's archives and as JSON, and the fields of structured results, as JSON and as a table."""

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
    from vllm_mmout.outputs.areas import AreasOutput
    from vllm_mmout.outputs.formats import Format
    from vllm_mmout.outputs.raster import RasterOutput
    from vllm_mmout.outputs.structured import StructuredOutput
    from vllm_mmout.outputs.tensor import TensorOutput

_AT_ONCE = 1 << 15
"""Numbers that become JSON at once: a millisecond or two."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""Characters that begin a formula in spreadsheets. The last four are full-width."""
_NUMPYS_OWN = frozenset({"file", "allow_pickle"})
"""Names that numpy.savez takes for its own arguments."""


def write_npz(output: TensorOutput, file: BinaryIO, _form: Format) -> None:
    """Write all arrays, compressed."""
    save_arrays(file, output.arrays)


def write_raster_npz(output: RasterOutput, file: BinaryIO, _form: Format) -> None:
    """Write the pixels as ``array``, and what is known beside them as arrays of their own."""
    known = {
        "nodata": output.nodata,
        "crs": output.crs,
        "transform": output.transform,
        "band_names": [name or "" for name in output.band_names] or None,
        "units": [unit or "" for unit in output.units] or None,
        "class_names": output.class_names,
        "palette": output.palette,
    }
    told = {name: np.asarray(value) for name, value in known.items() if value is not None}
    save_arrays(file, {"array": output.array, **told})


def write_npy(output: TensorOutput, file: BinaryIO, _form: Format) -> None:
    """Write the one array."""
    if len(output.arrays) > 1:
        raise SaveError(f".npy holds one array, the output has {len(output.arrays)}; save it as .npz")
    np.save(file, output.array, allow_pickle=False)


def write_json(output: TensorOutput, file: BinaryIO, _form: Format) -> None:
    """Write an object of nested lists by name, piece by piece; null for what is no number."""
    opening = b"{"
    for name, array in output.arrays.items():
        if array.dtype.kind not in "biufUS":
            raise SaveError(f"JSON has no numbers of {array.dtype}; save {name!r} as .npz")
        file.write(opening + msgspec.json.encode(name) + b":")
        file.writelines(_lists(array))
        opening = b","
    file.write(b"}")


def _lists(array: NDArray[Any]) -> Iterator[bytes]:
    """An array as nested lists; few numbers at a time, as no other thread runs while they are made."""
    if array.size <= _AT_ONCE:
        yield msgspec.json.encode(array.tolist())
        return
    step = _AT_ONCE // (array.size // len(array))
    opening = b"["
    for start in range(0, len(array), max(step, 1)):
        yield opening
        if step:
            yield msgspec.json.encode(array[start : start + step].tolist())[1:-1]
        else:
            yield from _lists(array[start])
        opening = b","
    yield b"]"


def save_arrays(file: BinaryIO, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays by name, compressed."""
    for name in arrays:
        if name in _NUMPYS_OWN or "/" in name or "\\" in name:
            raise SaveError(f"an .npz cannot hold an array named {name!r}; rename it")
    np.savez_compressed(file, allow_pickle=False, **dict(arrays))


def write_fields(output: StructuredOutput, file: BinaryIO, _form: Format) -> None:
    """Write all fields."""
    file.write(output.model_dump_json(indent=2).encode())


def _as_cell(value: Any) -> Any:
    """Return a value as a cell of a table, with an apostrophe before text that spreadsheets would run.

    The characters and the apostrophe follow OWASP's page on CSV injection.
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def write_areas(output: AreasOutput, file: BinaryIO, _form: Format) -> None:
    """Write a row of column names and a row for each class. Texts are quoted, and none runs as a formula."""
    from vllm_mmout.outputs.areas import ClassArea  # with pydantic

    text = StringIO()
    names = csv.writer(text, lineterminator="\n")
    names.writerow(ClassArea.model_fields)
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    writer.writerows(map(_as_cell, one.model_dump().values()) for one in output.classes)
    file.write(text.getvalue().encode())
