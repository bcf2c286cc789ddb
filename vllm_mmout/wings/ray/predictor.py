"""Run a model on batches of scenes, in a Ray actor that keeps its engine loaded."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import numpy as np

from vllm_mmout.commands.engine import check_installed, engine, prepare_environment
from vllm_mmout.errors import SaveError
from vllm_mmout.models.embedded.folders import found_model
from vllm_mmout.models.inputs.input_forms import name_of
from vllm_mmout.params import OutputParams
from vllm_mmout.wings.ray.columns import columns_of, rows_of
from vllm_mmout.wings.ray.manifest import Manifest, SceneRecord
from vllm_mmout.wings.ray.objects import PARTS, main_last
from vllm_mmout.wings.ray.tasks import this_node
from vllm_mmout.wings.ray.windows import facts_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vllm_mmout.engine.request.llm import BoundLLM
    from vllm_mmout.engine.request_output import MultimodalRequestOutput

OPTIONS: Final = "options"
"""Dataset column with options for a single scene, as JSON. They override the options for all scenes."""
NAME: Final = "name"
"""Dataset column with the name of a scene's result files, relative to the results folder, without suffix."""
RECORD: Final = "record"
"""Dataset column with the outcome of a scene: a `SceneRecord` as JSON."""
MOST_STARTS: Final = 4
"""Maximum number of attempts to run a scene. After a scene crashed its worker, the scene runs alone, not in a batch."""


@dataclass(frozen=True)
class RunSettings:
    """Settings that are shared by all Ray actors that process a dataset."""

    model: str
    params: OutputParams
    engine: Mapping[str, Any] | Sequence[str]
    """Arguments of ``vllm.LLM`` by name, or a list of command-line flags."""
    column: str
    """Name of the dataset column that holds the inputs of ``LLM.generate``."""
    manifest: Manifest | None = None
    run: str = ""
    """Unique name of one run of ``vllm-mmout run --ray``. Empty if ``manifest`` is None."""


@dataclass(frozen=True)
class _ManifestRow:
    """Scene to run, with its options and the name of its result files."""

    scene: str
    options: dict[str, Any]
    name: str
    params: OutputParams

    @property
    def is_part(self) -> bool:
        """Whether the result is only a part of a larger result, for example the result of one window of a scene."""
        return self.name.startswith(f"{PARTS}/")


class Predictor:
    """Callable for Ray Data that starts an engine, and then runs the model on batches of scenes.

    Each Ray actor creates an instance. `of` returns a subclass with settings.
    """

    job: RunSettings

    def __init__(self) -> None:
        # Ray limits the threads of each actor. Several actors on a machine must not be bound to the same processors.
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        self._open = ExitStack()
        self._llm = self._open.enter_context(_started(self.job))

    @classmethod
    def of(cls, job: RunSettings) -> type[Predictor]:
        """Return a subclass with the settings ``job``. The subclass is named after the model.

        Ray's dashboard shows the class name of each actor.
        """
        return type(job.model.rstrip("/").rpartition("/")[2], (cls,), {"__doc__": cls.__doc__, "job": job})

    def __call__(self, batch: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run the model on a batch, a dict from column name to array. Return the batch with result columns added."""
        rows = rows_of(batch)
        options = [msgspec.json.decode(row.get(OPTIONS) or b"{}", type=dict[str, Any]) for row in rows]
        params = [self._params(own) for own in options]
        scenes = [row[self.job.column] for row in rows]
        if self.job.manifest is None:
            return {**batch, **columns_of(self._run(scenes, params, [False] * len(scenes)), self.job.params)}
        entries = [
            _ManifestRow(scene, *more)
            for scene, *more in zip(scenes, options, batch[NAME].tolist(), params, strict=True)
        ]
        records = [msgspec.json.encode(record).decode() for record in self._recorded(entries, self.job.manifest)]
        return {**batch, RECORD: np.array(records, object)}

    def _params(self, options: Mapping[str, Any]) -> OutputParams:
        """Return a scene's options: the options for all scenes, overridden by ``options``."""
        params = self.job.params
        own = OutputParams.from_mapping({**params.to_mapping(), **options}) if options else params
        return msgspec.structs.replace(own, path=params.path)

    def _run(
        self, scenes: Sequence[Any], params: Sequence[OutputParams], may_be_empty: Sequence[bool]
    ) -> list[MultimodalRequestOutput]:
        return self._llm.generate(list(scenes), list(params), use_tqdm=False, may_be_empty=list(may_be_empty))

    def _recorded(self, entries: Sequence[_ManifestRow], manifest: Manifest) -> list[SceneRecord]:
        """Return the recorded outcome of each scene. Run the scenes whose outcome is not yet in ``manifest``.

        Scenes run as a batch, except that a scene during which a worker crashed runs alone.
        """
        records = [manifest.find(entry.scene, entry.options) for entry in entries]
        left = [place for place, record in enumerate(records) if record is None]
        begun = {
            place: manifest.start_count(self.job.run, entries[place].scene, entries[place].options) for place in left
        }
        together = [place for place in left if not begun[place]]
        groups = [together] if together else []
        for group in groups + [[place] for place in left if begun[place]]:
            group_entries = [entries[place] for place in group]
            if begun[group[0]] >= MOST_STARTS:
                group_records = [_given_up(group_entries[0], manifest)]
            else:
                for entry in group_entries:  # counted only now, since a scene that waits cannot crash a worker
                    manifest.count_start(self.job.run, entry.scene, entry.options)
                group_records = self._stored(group_entries, manifest)
            for place, record in zip(group, group_records, strict=True):
                records[place] = record
        return [record for record in records if record is not None]

    def _stored(self, entries: Sequence[_ManifestRow], manifest: Manifest) -> list[SceneRecord]:
        """Run scenes as a batch. Store the scenes' result files and outcomes, and return the outcomes."""
        started = time.monotonic()
        with manifest.objects.temporary_folder(self.job.run) as folder:
            places = [folder / str(number) for number in range(len(entries))]
            params = [
                msgspec.structs.replace(entry.params, path=f"{place}{os.sep}")
                for entry, place in zip(entries, places, strict=True)
            ]
            try:
                parts = [entry.is_part for entry in entries]
                results = self._run([entry.scene for entry in entries], params, parts)
            except Exception:  # noqa: BLE001 - the engine has ended, so the actor ends too, and Ray starts a new actor
                traceback.print_exc()
                os._exit(1)
            seconds = (time.monotonic() - started) / len(entries)
            outcomes = zip(entries, results, places, strict=True)
            records = [_record(*outcome, manifest, seconds=round(seconds, 3)) for outcome in outcomes]
        for record in records:
            manifest.write(record)
        return records


def _record(
    entry: _ManifestRow, result: MultimodalRequestOutput, work_folder: Path, manifest: Manifest, **facts: Any
) -> SceneRecord:
    """Move a scene's result files from ``work_folder`` to the results folder. Return the scene's outcome."""
    facts |= {"scene": entry.scene, "options": entry.options, "node": this_node()}
    if result.error is not None:
        return SceneRecord(**facts, error=str(result.error))
    made = main_last(work_folder.iterdir())  # readers take the presence of the main file as the end of the run
    try:
        files = [
            manifest.objects.move_in(file, entry.name + file.name.removeprefix(name_of(entry.scene))) for file in made
        ]
    except SaveError as error:
        return SceneRecord(**facts, error=str(error))
    known = dict(facts_of(result.outputs)) if entry.is_part else {}
    return SceneRecord(**facts, files=tuple(reversed(files)), assumed=result.assumed, known=known)


def _given_up(entry: _ManifestRow, manifest: Manifest) -> SceneRecord:
    """Store an error as the outcome of a scene that crashed its worker too often, and return this outcome."""
    error = f"whatever ran this scene ended {MOST_STARTS} times before it was done; run it alone to see why"
    record = SceneRecord(scene=entry.scene, options=entry.options, error=error)
    manifest.write(record)
    return record


@contextmanager
def _started(job: RunSettings) -> Iterator[BoundLLM]:
    if not isinstance(job.engine, Mapping):
        with engine(job.model, job.engine) as llm:
            yield llm
        return
    prepare_environment()
    check_installed()
    from vllm import LLM

    llm = cast("BoundLLM", LLM(found_model(job.model), **job.engine))
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
