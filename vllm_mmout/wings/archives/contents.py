"""Read and check a ``.pt2`` archive: its program's inputs, outputs and weights. This works without torch."""

from __future__ import annotations

import json
import os
import stat
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import msgspec

from vllm_mmout.errors import OptionError
from vllm_mmout.wings.archives.operators import TRUST, untrusted
from vllm_mmout.wings.archives.program import Argument, CallEntry, CallSignature, Program
from vllm_mmout.wings.archives.tensors import Payloads, Size, TensorMeta

SUFFIX: Final = ".pt2"
UNBOUNDED: Final = 2**31 - 1
_USUAL: Final = 1024
_MAX_JSON_BYTES: Final = 2**26
"""Maximum size in bytes of a JSON file in a ``.pt2`` archive."""
_DTYPES: Final = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64", 12: "bool",
    13: "bfloat16", 28: "uint16", 34: "uint32", 35: "uint64",
}  # fmt: skip
"""Maps dtype codes of torch.export's schema to dtype names."""
_LEAF: Final[dict[str, Any]] = {"type": None, "context": None, "children_spec": []}
_REMEDY: Final = (
    "only raw tensors and torch's own operators on them are supported; export the plain network, with tensors as"
    " inputs, and tensors, or a dict, list or tuple of tensors, as outputs"
)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SizeRange:
    """Range of sizes that an exported program accepts for one axis of a tensor."""

    least: int
    most: int
    """Largest size of the axis that the program accepts, or `UNBOUNDED` if the size is not limited."""

    @property
    def fixed(self) -> int | None:
        """The only size that the axis may have, or None if its size may vary."""
        return self.least if self.least == self.most else None

    @property
    def default_size(self) -> int:
        """Size to use if the caller does not name a size: 1024, limited to the range from ``least`` to ``most``."""
        return min(self.most, max(_USUAL, self.least))


@dataclass(frozen=True, slots=True)
class InputTensor:
    """Tensor that an exported program takes: its name, its dtype, and the sizes that each axis may have."""

    name: str
    dtype: str
    axes: tuple[SizeRange, ...]
    """Range of sizes of each axis, including the batch axis."""


@dataclass(frozen=True, slots=True)
class Contents:
    """Description of the exported program in a ``.pt2`` archive, as read and checked by `contents_of`."""

    file: Path
    name: str
    """Name of the exported program, usually "model"."""
    inputs: tuple[InputTensor, ...]
    """Input tensors, in the order of the exported program's arguments."""
    arguments: tuple[Any, ...]
    """Positional arguments for a call of the exported program. Constants have their value from the export, and tensors
    are None."""
    tensor_indices: tuple[int, ...]
    """Positions of the input tensors in ``arguments``."""
    outputs: tuple[str, ...]
    """Name of each output: its key or index in the returned structure, such as "logits" or "0.mask". A single output is
    named ""."""
    output_ranks: tuple[int, ...]
    """Number of axes of each output that is a tensor."""
    files: Mapping[str, bytes]
    """Content of each checked file, by file name. torch loads these bytes instead of reading the archive itself."""
    targets: frozenset[str]
    """Names of the torch operators that the exported program calls."""

    def check_operators(self, trusted: Collection[str]) -> None:
        """Raise OptionError if the exported program calls an operator that is neither allowed nor in ``trusted``."""
        refused = untrusted(self.targets, trusted)
        if refused:
            calls = ", ".join(f"a call of {target!r}" for target in refused)
            raise OptionError(
                f"{self.file.name} contains something that is not supported: {calls}; such operators may access memory"
                " without a check. Export the network without them, or, if you trust whoever made the archive, name"
                f" them in the engine's option {TRUST}: {json.dumps(sorted(set(refused.values())))}"
            )


def contents_of(file: Path) -> Contents:
    """Read and check an archive. Raise OptionError if it is malformed, or has unsupported content."""
    try:
        with _opened(file) as content, zipfile.ZipFile(content) as archive:
            return _read(file, archive)
    except msgspec.ValidationError as error:
        raise OptionError(f"{file.name} contains something that is not supported: {error}; {_REMEDY}") from error
    except (OSError, zipfile.BadZipFile, zlib.error, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise OptionError(
            f"{file.name} is not an archive that torch.export.save of torch 2.9 or later writes:"
            f' {type(error).__name__}: {error}; write it by torch.export.save(program, "FILE{SUFFIX}")'
        ) from error


def _opened(file: Path) -> BinaryIO:
    """Open a regular file for reading. Raise OptionError for a pipe or device, as opening it could block forever."""
    content = os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK), "rb")
    if not stat.S_ISREG(os.fstat(content.fileno()).st_mode):
        content.close()
        raise OptionError(f"{file} is not a regular file; put the archive itself there")
    return content


def _read(file: Path, archive: zipfile.ZipFile) -> Contents:
    entries = {info.filename.partition("/")[2]: info for info in archive.infolist()}
    names = [path.removeprefix("models/").removesuffix(".json") for path in entries if path.startswith("models/")]
    if len(names) != 1 or not names[0].isidentifier():
        raise OptionError(
            f"{file.name} holds {len(names)} programs ({', '.join(names)}), and exactly one is supported; write it by"
            " torch.export.save"
        )
    if any(path.startswith("data/aotinductor/") for path in entries):
        raise OptionError(f"{file.name} holds compiled machine code (AOTInductor), and {_REMEDY}")
    (name,) = names

    def decoded(path: str, kind: type[T]) -> T:
        info = entries[path]
        if info.compress_type != zipfile.ZIP_STORED or info.file_size > _MAX_JSON_BYTES:
            raise OptionError(f"{path} in {file.name} is compressed, or has more than {_MAX_JSON_BYTES} bytes")
        return msgspec.json.decode(archive.read(info), type=kind)

    model = f"models/{name}.json"
    program = decoded(model, Program)
    kinds = {kind: f"data/{kind}/{name}_{kind}_config.json" for kind in ("weights", "constants")}
    tables = {kind: decoded(path, Payloads) for kind, path in kinds.items()}
    stored = {
        info.filename: info for kind, table in tables.items() for info in _tensor_entries(file, entries, kind, table)
    }
    if sum(info.file_size for info in stored.values()) > file.stat().st_size:
        raise OptionError(f"the weights in {file.name} are more bytes than the file has; export the network again")
    payloads = {kinds[kind]: msgspec.json.encode(table) for kind, table in tables.items()}
    outputs = _outputs(program)
    arguments, inputs = _flat_inputs(program)
    _flatten(program, len(arguments), len(outputs))
    tensors = program.graph_module.graph.tensor_values
    user_outputs = [spec.user_output.arg for spec in program.graph_module.signature.output_specs if spec.user_output]
    return Contents(
        file,
        name,
        inputs=tuple(inputs.values()),
        arguments=arguments,
        tensor_indices=tuple(inputs),
        outputs=outputs,
        output_ranks=tuple(len(tensors[arg.as_tensor.name].sizes) for arg in user_outputs if arg.as_tensor),
        files={model: msgspec.json.encode(program), **payloads, f"data/sample_inputs/{name}.pt": b""},
        targets=frozenset(program.graph_module.graph.targets()),
    )


def _tensor_entries(
    file: Path, entries: Mapping[str, zipfile.ZipInfo], kind: str, table: Payloads
) -> Iterator[zipfile.ZipInfo]:
    """Yield the zip entry of each tensor in ``table``. Raise OptionError if an entry is compressed or too short."""
    for name, payload in table.config.items():
        path = f"data/{kind}/{payload.path_name}"
        info = entries[path]
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
            raise OptionError(f"{path} in {file.name} is compressed; torch.export.save stores weights as they are")
        needed = payload.nbytes
        if needed > info.file_size:
            raise OptionError(
                f"{path} in {file.name} has {info.file_size} bytes, and {name} needs {needed}; export the network again"
            )
        yield info


def _flat_inputs(program: Program) -> tuple[tuple[Any, ...], dict[int, InputTensor]]:
    """Flatten a program's arguments into a tuple, and replace tensors by None. Also return the tensors, by position."""
    arguments: list[Any] = []
    inputs: dict[int, InputTensor] = {}
    for spec in program.graph_module.signature.input_specs:
        if spec.user_input:
            if not spec.user_input.arg.as_tensor:
                raise OptionError(f"an input of the program is a number that may vary, and {_REMEDY}")
            name = spec.user_input.arg.as_tensor.name
            inputs[len(arguments)] = _input(name, program.graph_module.graph.tensor_values[name], program)
            arguments.append(None)
        elif spec.constant_input:
            arguments.append(_constant(spec.constant_input.value))
    return tuple(arguments), inputs


def _constant(value: Argument) -> Any:
    ((kind, content),) = msgspec.to_builtins(value).items()
    return None if kind == "as_none" else content


def _input(name: str, meta: TensorMeta, program: Program) -> InputTensor:
    if meta.dtype not in _DTYPES:
        raise OptionError(f"the input {name} is complex or an 8-bit float; export it as float32")
    return InputTensor(name, _DTYPES[meta.dtype], tuple(_axis(size, program) for size in meta.sizes))


def _axis(size: Size, program: Program) -> SizeRange:
    if isinstance(size.as_int, int):
        return SizeRange(size.as_int, size.as_int)
    expression = msgspec.to_builtins(size)["as_expr"]
    text = expression["expr_str"]
    symbol = text.removeprefix("Symbol('").partition("'")[0]
    bounds = program.range_constraints.get(symbol) if text.startswith("Symbol(") else None
    if bounds is None:  # a multiple of a symbol: only its size at export is known to work
        hint = (expression.get("hint") or {}).get("as_int", 1)
        return SizeRange(hint, hint)
    return SizeRange(bounds.min_val or 1, bounds.max_val or UNBOUNDED)


def _outputs(program: Program) -> tuple[str, ...]:
    """Return a name for each output tensor of a program, such as "0.mask".

    A name joins the keys and indices that lead to the tensor in the program's return value.
    """
    signature = program.graph_module.module_call_graph[0].signature
    if signature is None:
        raise OptionError("the program does not describe its outputs; export it again")
    return tuple(_leaves(json.loads(signature.out_spec)[1], ""))


def _leaves(tree: Any, name: str) -> Iterator[str]:
    kind, children = tree["type"], tree["children_spec"]
    if kind is None:
        yield name
        return
    keys: Any = range(len(children))
    if kind in ("builtins.dict", "collections.OrderedDict"):
        keys = json.loads(tree["context"])
    elif kind not in ("builtins.tuple", "builtins.list"):
        raise OptionError(f"an output of the program is of the class {kind}, and {_REMEDY}")
    single = kind in ("builtins.tuple", "builtins.list") and len(children) == 1
    for key, child in zip(keys, children, strict=True):
        yield from _leaves(child, name if single else f"{name}.{key}".removeprefix("."))


def _flatten(program: Program, inputs: int, outputs: int) -> None:
    """Change a program to take and return flat tuples, without nested containers.

    ``inputs`` is the number of arguments, and ``outputs`` is the number of results.
    """

    def tree(kind: str, children: list[Any]) -> dict[str, Any]:
        return {"type": f"builtins.{kind}", "context": "null", "children_spec": children}

    none = {**tree("dict", []), "context": "[]"}
    signature = CallSignature(
        in_spec=json.dumps([1, tree("tuple", [tree("tuple", [_LEAF] * inputs), none])]),
        out_spec=json.dumps([1, tree("tuple", [_LEAF] * outputs)]),
    )
    program.graph_module.module_call_graph = [CallEntry("", signature)]
