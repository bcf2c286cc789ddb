"""Compute a hash of the engine's flags and the model's files. Only results with an equal hash are reused."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

_WEIGHTS: Final = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".pt2", ".gguf")
_FLAG: Final = re.compile(r"-(?!\d)")
"""Pattern that matches the beginning of a flag, but not of a negative number."""


def setup_key(model: str, flags: Sequence[str]) -> str:
    """Return a hash of the engine's flags and of the files of a local model.

    Flags in another order or spelling (``--max_num_seqs=4`` for ``--max-num-seqs 4``) have the same key. JSON files of
    the model count by their content, weights by name, size and time of change.
    """
    files = [*_files(Path(model))]
    return hashlib.sha256(msgspec.json.encode([_normalised(flags), files], order="sorted")).hexdigest()


def _normalised(flags: Sequence[str]) -> list[tuple[str, list[Any]]]:
    """Convert flags to (name, values) pairs, sorted by name. Equivalent spellings of a flag give equal pairs.

    For example, ``--max_num_seqs=4`` and ``--max-num-seqs 4`` give the same pair.
    """
    named: list[tuple[str, list[Any]]] = []
    for text in flags:
        if _FLAG.match(text) or not named:
            name, equals, value = text.partition("=")
            head, dot, keys = name.partition(".")
            named.append((f"{head.replace('_', '-')}{dot}{keys}", [_value(value)] if equals else []))
        else:
            named[-1][1].append(_value(text))
    for name, values in named:
        if name == "--config":  # a file of flags
            values += [_digest(Path(value)) for value in values if isinstance(value, str) and Path(value).is_file()]
    return sorted(named, key=lambda flag: flag[0])


def _value(text: str) -> Any:
    """Parse a flag's value if the text is a JSON object. Return any other text unchanged.

    Spaces in the JSON text then do not change the hash.
    """
    try:
        return msgspec.json.decode(text) if text.startswith("{") else text
    except msgspec.DecodeError:
        return text


def _files(model: Path) -> Iterator[tuple[str, ...]]:
    """Yield (name, content hash) for each JSON file of a model, and (name, size, modification time) for weights files.

    Other files and hidden files are skipped.
    """
    for path in sorted(model.rglob("*")) if model.is_dir() else [model] if model.is_file() else []:
        name = path.relative_to(model)
        if any(part.startswith(".") for part in name.parts) or not path.is_file():
            continue
        if path.suffix == ".json":
            yield name.as_posix(), _digest(path)
        elif path.suffix in _WEIGHTS:
            state = path.stat()
            yield name.as_posix(), str(state.st_size), str(state.st_mtime_ns)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
