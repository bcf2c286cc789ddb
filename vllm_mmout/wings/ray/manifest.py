"""Manifest: what is known of each scene of a run, as one small object a scene beside the results."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec

from vllm_mmout.wings.ray.objects import FOLDER, RUNS, Objects, ResultFile

if TYPE_CHECKING:
    from vllm_mmout.params import OutputParams

REPORT: Final = "report.jsonl"
_READERS: Final = 16


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a scene."""

    scene: str
    options: dict[str, Any] = {}
    """What this scene was asked beside the options of all."""
    files: tuple[ResultFile, ...] = ()
    """The result, the file that `vllm-mmout run` would name first."""
    error: str | None = None
    """Why there is none."""
    seconds: float = 0.0
    node: str = ""
    known: dict[str, Any] = {}
    """Of a part that is to be joined: what is known of its raster and GeoTIFF readers may not find."""


@dataclass(frozen=True)
class Manifest:
    """The records of one model's run with the same options; all methods block, and many processes may share one."""

    out: str
    """Folder or bucket address of the results."""
    model: str
    params: OutputParams

    @cached_property
    def objects(self) -> Objects:
        """What lies below the address of the results."""
        return Objects(self.out)

    def __reduce__(self) -> tuple[type[Manifest], tuple[str, str, OutputParams]]:
        """Without the open store, whose credentials are of one process."""
        return Manifest, (self.out, self.model, self.params)

    def key(self, scene: str, options: Mapping[str, Any]) -> str:
        """What a scene's record is called: another model, or other options, have records of their own."""
        said = [scene, self.model, self.params.to_wire(), dict(options)]
        return hashlib.sha256(msgspec.json.encode(said, order="sorted")).hexdigest()[:32]

    def find(self, scene: str, options: Mapping[str, Any]) -> Record | None:
        """The record of a scene that is done: its files are there, as large as they were. None otherwise."""
        stored = self.objects.read(f"{FOLDER}/{self.key(scene, options)}.json")
        if stored is None:
            return None
        try:
            record = msgspec.json.decode(stored, type=Record)
        except msgspec.MsgspecError:  # somebody else's file, or of another release: the scene is run again
            return None
        whole = all(self.objects.size(file.address) == file.nbytes for file in record.files)
        return record if whole and record.error is None else None

    def done(self, scenes: Iterable[tuple[str, Mapping[str, Any]]]) -> list[Record | None]:
        """The same of many scenes, in their order."""
        with ThreadPoolExecutor(_READERS, "mmout-manifest") as pool:
            return list(pool.map(lambda scene: self.find(*scene), scenes))

    def write(self, record: Record) -> None:
        """Store a record, in the place of an older one of its scene."""
        self.objects.write(f"{FOLDER}/{self.key(record.scene, record.options)}.json", msgspec.json.encode(record))

    def forget(self, record: Record) -> None:
        """Remove a record with the files that it names."""
        for file in record.files:
            self.objects.remove(file.address)
        self.objects.remove(self.objects.address(f"{FOLDER}/{self.key(record.scene, record.options)}.json"))

    def begun(self, run: str, scene: str, options: Mapping[str, Any]) -> int:
        """Return how often a scene was begun in a run."""
        return len(self.objects.keys(self._starts(run, scene, options)))

    def begin(self, run: str, scene: str, options: Mapping[str, Any]) -> None:
        """Note that a scene is begun once more in a run."""
        self.objects.write(f"{self._starts(run, scene, options)}/{secrets.token_hex(8)}", b"")

    def _starts(self, run: str, scene: str, options: Mapping[str, Any]) -> str:
        return f"{RUNS}/{run}/{self.key(scene, options)}"

    def report(self, records: Iterable[Record]) -> str:
        """Write a line for each scene, remove the notes of runs, and return the address of the report."""
        self.objects.write(REPORT, b"".join(msgspec.json.encode(record) + b"\n" for record in records))
        self.objects.remove_below(RUNS)
        return self.objects.address(REPORT)
