"""Store the outcomes of scenes beside the results, so that an interrupted run can skip the scenes that are done."""

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


class SceneRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Outcome of a scene, which is stored as JSON: the files of its result, or its error."""

    scene: str
    options: dict[str, Any] = {}
    """Options that only this scene has. They are added to the options for all scenes."""
    files: tuple[ResultFile, ...] = ()
    """Files of the result. The first is the main file, whose path `vllm-mmout run` prints."""
    error: str | None = None
    """Error message if the scene failed, or None."""
    assumed: tuple[str, ...] = ()
    """Sentences for users about assumed properties of the scene, such as the scale of the pixel values."""
    seconds: float = 0.0
    """Duration of the scene's run in seconds."""
    node: str = ""
    """Network address of the machine that ran the scene."""
    known: dict[str, Any] = {}
    """Further facts about the result that its GeoTIFF lacks, such as units, class names and palette. They are needed
    when the windows of a scene are joined."""


@dataclass(frozen=True)
class Manifest:
    """Stored outcomes of the scenes in a results folder.

    An outcome is reused only in runs with equal model, options and engine flags. Several processes may use the same
    records. All methods block.
    """

    out: str
    """Folder or bucket address of the results."""
    model: str
    params: OutputParams
    setup: str = ""
    """Hash of the engine's flags and the model's files, as `setup_key` returns it."""

    @cached_property
    def objects(self) -> Objects:
        """File store in the results folder or bucket, opened at first use."""
        return Objects(self.out)

    def __reduce__(self) -> tuple[type[Manifest], tuple[str, str, OutputParams, str]]:
        """Leave the open file store out of the pickle, because its credentials are valid only in this process."""
        return Manifest, (self.out, self.model, self.params, self.setup)

    def key(self, scene: str, options: Mapping[str, Any]) -> str:
        """Return the file name of a scene's outcome: a hash of the scene, model, options and engine flags."""
        parts = [scene, self.model, self.params.to_mapping(), dict(options), self.setup]
        return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()[:32]

    def find(self, scene: str, options: Mapping[str, Any]) -> SceneRecord | None:
        """Return the stored outcome of a scene, or None if the scene failed or its files are missing."""
        stored = self.objects.read(f"{FOLDER}/{self.key(scene, options)}.json")
        if stored is None:
            return None
        try:
            record = msgspec.json.decode(stored, type=SceneRecord)
        except msgspec.MsgspecError:  # another program's file, or another release's: run the scene again
            return None
        whole = all(self.objects.size(file.address) == file.nbytes for file in record.files)
        return record if whole and record.error is None else None

    def done(self, scenes: Iterable[tuple[str, Mapping[str, Any]]]) -> list[SceneRecord | None]:
        """Return the stored outcome of each scene, or None for a scene that must be run."""
        with ThreadPoolExecutor(_READERS, "mmout-manifest") as pool:
            return list(pool.map(lambda scene: self.find(*scene), scenes))

    def write(self, record: SceneRecord) -> None:
        """Store the outcome of a scene, replacing an older outcome."""
        self.objects.write(f"{FOLDER}/{self.key(record.scene, record.options)}.json", msgspec.json.encode(record))

    def forget(self, record: SceneRecord) -> None:
        """Delete a stored outcome and the result files that it names."""
        for file in record.files:
            self.objects.remove(file.address)
        self.objects.remove(self.objects.address(f"{FOLDER}/{self.key(record.scene, record.options)}.json"))

    def start_count(self, run: str, scene: str, options: Mapping[str, Any]) -> int:
        """Return how many times a scene was started during one run of ``vllm-mmout run --ray``.

        ``run`` is the unique name of the run.
        """
        return len(self.objects.keys(self._starts(run, scene, options)))

    def count_start(self, run: str, scene: str, options: Mapping[str, Any]) -> None:
        """Add 1 to the number of times that a scene was started.

        The number shows which scenes repeatedly crash their worker. ``run`` is the unique name of one run of
        ``vllm-mmout run --ray``.
        """
        self.objects.write(f"{self._starts(run, scene, options)}/{secrets.token_hex(8)}", b"")

    def _starts(self, run: str, scene: str, options: Mapping[str, Any]) -> str:
        return f"{RUNS}/{run}/{self.key(scene, options)}"

    def report(self, records: Iterable[SceneRecord]) -> str:
        """Write a report with the outcome of each scene, and return its address. Delete all temporary files."""
        self.objects.write(REPORT, b"".join(msgspec.json.encode(record) + b"\n" for record in records))
        self.objects.remove_below(RUNS)
        return self.objects.address(REPORT)
