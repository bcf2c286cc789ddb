"""Record the outcomes of scenes in small files beside the results, so that an interrupted run can be continued."""

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
    """Outcome of a scene: the files of its result, or its error."""

    scene: str
    options: dict[str, Any] = {}
    """Options of this scene, in addition to the run's options."""
    files: tuple[ResultFile, ...] = ()
    """The files of the result. The first is the main file, which `vllm-mmout run` prints."""
    error: str | None = None
    """Error message if the scene failed, or None."""
    assumed: tuple[str, ...] = ()
    """Assumptions that were made about the scene, as sentences for the user."""
    seconds: float = 0.0
    """Duration of the scene's run in seconds."""
    node: str = ""
    """Address of the machine that ran the scene."""
    known: dict[str, Any] = {}
    """Units, class names and palette of a window's result. They are missing in its GeoTIFF, and joining needs them."""


@dataclass(frozen=True)
class Manifest:
    """Records of scenes in a results folder, for runs with the same model, options and engine flags.

    Several processes may use the same records. All methods block.
    """

    out: str
    """Folder or bucket address of the results."""
    model: str
    params: OutputParams
    setup: str = ""
    """Hash of the engine's flags and the model's files, from `setup_key`."""

    @cached_property
    def objects(self) -> Objects:
        """File store in the results folder or bucket, opened at first use."""
        return Objects(self.out)

    def __reduce__(self) -> tuple[type[Manifest], tuple[str, str, OutputParams, str]]:
        """Leave the open file store out of the pickle, because its credentials are valid only in this process."""
        return Manifest, (self.out, self.model, self.params, self.setup)

    def key(self, scene: str, options: Mapping[str, Any]) -> str:
        """Return the name of a scene's record: a hash of the scene, the model, the options and the flags."""
        parts = [scene, self.model, self.params.to_mapping(), dict(options), self.setup]
        return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()[:32]

    def find(self, scene: str, options: Mapping[str, Any]) -> SceneRecord | None:
        """Return a scene's record if all its result files exist. None means that the scene must be run."""
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
        """Return the record of each scene in order, or None for a scene that must be run."""
        with ThreadPoolExecutor(_READERS, "mmout-manifest") as pool:
            return list(pool.map(lambda scene: self.find(*scene), scenes))

    def write(self, record: SceneRecord) -> None:
        """Store a record, replacing an older record of the same scene."""
        self.objects.write(f"{FOLDER}/{self.key(record.scene, record.options)}.json", msgspec.json.encode(record))

    def forget(self, record: SceneRecord) -> None:
        """Delete a record and the result files that it names."""
        for file in record.files:
            self.objects.remove(file.address)
        self.objects.remove(self.objects.address(f"{FOLDER}/{self.key(record.scene, record.options)}.json"))

    def begun(self, run: str, scene: str, options: Mapping[str, Any]) -> int:
        """Return how many times a scene has been started in the run ``run``."""
        return len(self.objects.keys(self._starts(run, scene, options)))

    def begin(self, run: str, scene: str, options: Mapping[str, Any]) -> None:
        """Record that a scene is started once more in the run ``run``."""
        self.objects.write(f"{self._starts(run, scene, options)}/{secrets.token_hex(8)}", b"")

    def _starts(self, run: str, scene: str, options: Mapping[str, Any]) -> str:
        return f"{RUNS}/{run}/{self.key(scene, options)}"

    def report(self, records: Iterable[SceneRecord]) -> str:
        """Write a report with one line per scene, and return its address. Delete the temporary files of all runs."""
        self.objects.write(REPORT, b"".join(msgspec.json.encode(record) + b"\n" for record in records))
        self.objects.remove_below(RUNS)
        return self.objects.address(REPORT)
