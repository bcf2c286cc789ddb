"""Read the metadata of the nodes (groups and arrays) of a Zarr store, in version 2 or 3.

The formats are specified at https://zarr-specs.readthedocs.io.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.zarr.store import Store

_MOST_AXES: Final = 8


@dataclass(frozen=True, slots=True)
class Node:
    """Group or array of a Zarr store."""

    store: Store
    path: str
    """Path of the node in the Zarr store, "" for the root of the store."""
    stated: Mapping[str, Any]
    """Content of the Zarr node's metadata file ("zarr.json", ".zarray" or ".zgroup")."""
    attributes: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Name of the Zarr node (group or array) in error messages."""
        return f"{self.store.name}/{self.path}" if self.path else self.store.name

    @property
    def key(self) -> str:
        """Last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def is_array(self) -> bool:
        """Whether this Zarr node is an array, not a group."""
        return "shape" in self.stated

    @property
    def version(self) -> int:
        """Version of Zarr, 2 or 3."""
        return 3 if self.stated.get("zarr_format") == 3 else 2

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of elements along each axis of an array."""
        return self.integers("shape", self.stated.get("shape"), least=0)

    @property
    def dims(self) -> tuple[str | None, ...]:
        """Name of each axis of an array, or None for an axis without a name."""
        stated = (
            self.stated.get("dimension_names") if self.version == 3 else self.attributes.get("_ARRAY_DIMENSIONS")
        ) or [None] * len(self.shape)
        named = isinstance(stated, list) and all(name is None or isinstance(name, str) for name in stated)
        if not named or len(stated) != len(self.shape):
            raise self.damaged(f"the names of its dimensions are {stated!r:.100}")
        return tuple(stated)

    def child(self, name: str) -> Node | None:
        """Return the array or group ``name`` in this Zarr group, or None if it is missing."""
        if not name or "/" in name or "\\" in name or "\0" in name or name.startswith("."):
            return None
        return read_node(self.store, f"{self.path}/{name}" if self.path else name)

    def children(self) -> dict[str, Node]:
        """Return all arrays and groups in this Zarr group, by name."""
        nodes = ((name, self.child(name)) for name in sorted(self.store.children(self.path)))
        return {name: node for name, node in nodes if node is not None}

    def damaged(self, reason: str) -> InputError:
        """Return an InputError for invalid metadata of this Zarr node. ``reason`` describes the fault."""
        return InputError(f"{self.name} is not a Zarr array that can be read: {reason}; write it again")

    def integers(self, what: str, value: Any, *, least: int) -> tuple[int, ...]:
        """Check that ``value``, from the node's metadata, is a list of integers, and return it as a tuple.

        Raise InputError for any other value, or for an integer below ``least``. ``what`` names the value in the error.
        """
        if not isinstance(value, list) or not all(type(number) is int and least <= number < 2**63 for number in value):
            raise self.damaged(f"{what} is {value!r:.100}")
        if len(value) > _MOST_AXES:
            raise self.damaged(f"it has {len(value)} axes, {_MOST_AXES} at most")
        return tuple(value)


def read_node(store: Store, path: str) -> Node | None:
    """Read the metadata of a Zarr node (group or array). Return None if the node is missing."""
    start = f"{path}/" if path else ""
    stated = _json(store, f"{start}zarr.json")
    if stated is not None:
        if stated.get("zarr_format") != 3 or stated.get("node_type") not in ("array", "group"):
            raise InputError(f"{store.name}: {start}zarr.json states neither an array nor a group of Zarr 3")
        return Node(store, path, stated, mapping(stated.get("attributes")))
    for file in (".zarray", ".zgroup"):
        stated = _json(store, start + file)
        if stated is not None:
            return Node(store, path, stated, mapping(_json(store, f"{start}.zattrs")))
    return None


def _json(store: Store, key: str) -> Mapping[str, Any] | None:
    data = store.read_metadata(key)
    if data is None:
        return None
    try:
        stated = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{store.name}: {key} is not JSON: {error}; the Zarr store is damaged") from error
    if not isinstance(stated, dict):
        raise InputError(f"{store.name}: {key} is not a JSON object; the Zarr store is damaged")
    return stated


def mapping(value: Any) -> Mapping[str, Any]:
    """Return ``value`` if it is a JSON object, else an empty mapping."""
    return value if isinstance(value, dict) else {}
