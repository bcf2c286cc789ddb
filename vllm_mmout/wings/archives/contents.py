"""What a ``.pt2`` archive holds: the program's inputs and outputs, read from its JSON; needs no torch."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from vllm_mmout.errors import OptionError

SUFFIX: Final = ".pt2"
_MODEL: Final = re.compile(r"models/(.+)\.json")
_SYMBOL: Final = re.compile(r"Symbol\('(\w+)'")
_DTYPES: Final = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64", 12: "bool",
    13: "bfloat16", 28: "uint16", 34: "uint32", 35: "uint64",
}  # fmt: skip
"""Numbers of torch.export's schema."""
_LARGEST: Final = 2**28
"""Bytes of the JSON of a graph."""
_UNBOUNDED: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Size:
    """One axis of a tensor."""

    least: int
    most: int
    """`_UNBOUNDED` where nothing bounds it."""
    plain: bool = True
    """Whether all sizes between are taken, as far as the archive says it."""

    @property
    def fixed(self) -> int | None:
        """The one size; None where there are several."""
        return self.least if self.least == self.most else None


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input or output."""

    name: str
    dtype: str
    sizes: tuple[Size, ...]
    """With the batch axis."""


@dataclass(frozen=True, slots=True)
class Contents:
    """The program of an archive."""

    file: Path
    name: str
    """Of the program, "model" as a rule."""
    inputs: tuple[Tensor, ...]
    """In the order of the arguments of ``forward``."""
    outputs: tuple[Tensor, ...]
    program: Mapping[str, Any]
    """``models/NAME.json``."""
    payloads: Mapping[str, Mapping[str, Any]]
    """What says of its weights and its constants how they are stored, by the file that says it."""
    files: tuple[str, ...]
    """All files within, without the name of the folder that they are in."""


def contents_of(file: Path) -> Contents:
    """Read what an archive says of itself; OptionError: it is none, or none with one program for tensors."""
    try:
        with zipfile.ZipFile(file) as archive:
            files = {name.partition("/")[2]: name for name in archive.namelist()}
            names = [found[1] for found in map(_MODEL.fullmatch, files) if found]
            if len(names) != 1:
                raise OptionError(
                    f"{file.name} holds {len(names)} programs ({', '.join(names) or 'none'}), and one is served; write"
                    ' it by torch.export.save(program, "FILE.pt2")'
                )
            name = names[0]
            if (size := archive.getinfo(files[f"models/{name}.json"]).file_size) > _LARGEST:
                raise OptionError(f"the graph of {file.name} has {size} bytes, more than {_LARGEST} are not read")
            program = json.loads(archive.read(files[f"models/{name}.json"]))
            configs = [f"data/{kind}/{name}_{kind}_config.json" for kind in ("weights", "constants")]
            payloads = {path: json.loads(archive.read(files[path]))["config"] for path in configs if path in files}
    except (OSError, zipfile.BadZipFile, ValueError, KeyError, TypeError) as error:
        raise OptionError(
            f"{file.name} is no archive that torch.export.save writes: {error}; write it by torch.export.save(program,"
            ' "FILE.pt2")'
        ) from error
    try:
        inputs, outputs = _tensors(program)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise OptionError(
            f"the program of {file.name} cannot be read ({type(error).__name__}: {error}); export it with the torch"
            " that vLLM has here"
        ) from error
    return Contents(file, name, inputs, outputs, program, payloads, tuple(files))


def _tensors(program: Mapping[str, Any]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The inputs and outputs of a program that are tensors; ValueError where an input is something else."""
    graph = program["graph_module"]["graph"]
    specs = program["graph_module"]["signature"]
    ranges = program["range_constraints"]
    inputs: list[Tensor] = []
    for spec in specs["input_specs"]:
        if (given := spec.get("user_input")) is not None:
            if "as_tensor" not in given["arg"]:
                raise ValueError(f"an input of it is {', '.join(given['arg'])}, and tensors alone are served")
            inputs.append(_tensor(given["arg"]["as_tensor"]["name"], graph, ranges))
    wanted = [spec["user_output"]["arg"] for spec in specs["output_specs"] if "user_output" in spec]
    outputs = [_tensor(arg["as_tensor"]["name"], graph, ranges) for arg in wanted if "as_tensor" in arg]
    return tuple(inputs), tuple(outputs)


def _tensor(name: str, graph: Mapping[str, Any], ranges: Mapping[str, Any]) -> Tensor:
    said = graph["tensor_values"][name]
    sizes: Sequence[Mapping[str, Any]] = said["sizes"]
    return Tensor(name, _DTYPES.get(said["dtype"], "unknown"), tuple(_size(size, ranges) for size in sizes))


def _size(said: Mapping[str, Any], ranges: Mapping[str, Any]) -> Size:
    if "as_int" in said:
        return Size(said["as_int"], said["as_int"])
    expression = said["as_expr"]
    symbol = _SYMBOL.match(expression["expr_str"])
    bounds = ranges.get(symbol[1]) if symbol else None
    if bounds is None:  # of several symbols, or a multiple of one: what it was exported with is known to be right
        hint = (expression.get("hint") or {}).get("as_int")
        return Size(1, _UNBOUNDED, plain=False) if hint is None else Size(hint, hint, plain=False)
    return Size(bounds["min_val"] or 1, bounds["max_val"] or _UNBOUNDED)
