"""Predictor: what an actor of Ray Data does: it keeps an engine, and runs batches of scenes through it."""

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
from vllm_mmout.wings.ray.manifest import Manifest, Record
from vllm_mmout.wings.ray.tasks import this_node
from vllm_mmout.wings.ray.windows import facts_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vllm_mmout.engine.request.llm import BoundLLM
    from vllm_mmout.engine.request_output import MultimodalRequestOutput

OPTIONS: Final = "options"
"""Column of what a scene is asked beside the options of all: JSON."""
NAME: Final = "name"
"""Column of what the files of a scene are called below the folder of results, without a suffix."""
RECORD: Final = "record"
"""Column of what became of a scene: a `Record` as JSON."""
MOST_STARTS: Final = 4
"""Most starts of a scene in a run: one with others, then alone. Some scenes end the worker that runs them."""


@dataclass(frozen=True)
class Job:
    """What actors are told."""

    model: str
    params: OutputParams
    engine: Mapping[str, Any] | Sequence[str]
    """Arguments of ``vllm.LLM`` by name, or flags of the command line."""
    column: str
    """The column that holds what ``LLM.generate`` takes."""
    manifest: Manifest | None = None
    run: str = ""
    """The name of a run with a manifest, new at each start."""


@dataclass(frozen=True)
class _Asked:
    """A row whose files are named in a manifest."""

    scene: str
    options: dict[str, Any]
    name: str
    params: OutputParams


class Predictor:
    """Runs scenes. Ray makes one in each actor, of a class that `of` makes: what it is told goes with the class."""

    job: Job

    def __init__(self) -> None:
        # Ray says how many threads each actor has; several on one machine must not be bound to the same processors.
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        self._open = ExitStack()
        self._llm = self._open.enter_context(_started(self.job))

    @classmethod
    def of(cls, job: Job) -> type[Predictor]:
        """Those of a job; Ray's dashboard calls them by the model's name."""
        return type(job.model.rstrip("/").rpartition("/")[2], (cls,), {"__doc__": cls.__doc__, "job": job})

    def __call__(self, batch: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run a batch, each column an array; gives its columns and those of the results."""
        rows = rows_of(batch)
        options = [msgspec.json.decode(row.get(OPTIONS) or b"{}", type=dict[str, Any]) for row in rows]
        params = [self._params(asked) for asked in options]
        scenes = [row[self.job.column] for row in rows]
        if self.job.manifest is None:
            return {**batch, **columns_of(self._run(scenes, params), self.job.params)}
        asked = [
            _Asked(scene, *more) for scene, *more in zip(scenes, options, batch[NAME].tolist(), params, strict=True)
        ]
        records = [msgspec.json.encode(record).decode() for record in self._recorded(asked, self.job.manifest)]
        return {**batch, RECORD: np.array(records, object)}

    def _params(self, options: Mapping[str, Any]) -> OutputParams:
        """The options of one row."""
        params = self.job.params
        own = OutputParams.from_mapping({**params.to_wire(), **options}) if options else params
        return msgspec.structs.replace(own, path=params.path)

    def _run(self, scenes: Sequence[Any], params: Sequence[OutputParams]) -> list[MultimodalRequestOutput]:
        return self._llm.generate(list(scenes), list(params), use_tqdm=False)

    def _recorded(self, asked: Sequence[_Asked], manifest: Manifest) -> list[Record]:
        """Return the record of each scene. Scenes without a record are run: together, or alone if begun before."""
        records = [manifest.find(one.scene, one.options) for one in asked]
        left = [place for place, record in enumerate(records) if record is None]
        begun = {place: manifest.begun(self.job.run, asked[place].scene, asked[place].options) for place in left}
        together = [place for place in left if not begun[place]]
        groups = [together] if together else []
        for group in groups + [[place] for place in left if begun[place]]:
            ones = [asked[place] for place in group]
            if begun[group[0]] >= MOST_STARTS:
                made = [_given_up(ones[0], manifest)]
            else:
                for one in ones:  # noted only now, since a scene that waits cannot end a worker
                    manifest.begin(self.job.run, one.scene, one.options)
                made = self._stored(ones, manifest)
            for place, record in zip(group, made, strict=True):
                records[place] = record
        return [record for record in records if record is not None]

    def _stored(self, asked: Sequence[_Asked], manifest: Manifest) -> list[Record]:
        """Run scenes, put their files where they belong, and write what became of each."""
        started = time.monotonic()
        with manifest.objects.workshop(self.job.run) as folder:
            places = [folder / str(number) for number in range(len(asked))]
            params = [
                msgspec.structs.replace(one.params, path=f"{place}{os.sep}")
                for one, place in zip(asked, places, strict=True)
            ]
            try:
                results = self._run([one.scene for one in asked], params)
            except Exception:  # noqa: BLE001 - the engine has ended, and so does the actor: Ray starts another one
                traceback.print_exc()
                os._exit(1)
            seconds = (time.monotonic() - started) / len(asked)
            told = zip(asked, results, places, strict=True)
            records = [_record(*one, manifest, seconds=round(seconds, 3)) for one in told]
        for record in records:
            manifest.write(record)
        return records


def _record(one: _Asked, result: MultimodalRequestOutput, place: Path, manifest: Manifest, **told: Any) -> Record:
    """Put a scene's files where they belong."""
    told |= {"scene": one.scene, "options": one.options, "node": this_node()}
    if result.error is not None:
        return Record(**told, error=str(result.error))
    # A result is there when the file is that readers look for, which has the shortest name: it comes last.
    made = sorted(place.iterdir(), key=lambda file: len(file.name), reverse=True)
    try:
        files = [manifest.objects.placed(file, one.name + file.name.removeprefix(name_of(one.scene))) for file in made]
    except SaveError as error:
        return Record(**told, error=str(error))
    known = dict(facts_of(result.outputs)) if "window" in one.options else {}
    return Record(**told, files=tuple(reversed(files)), known=known)


def _given_up(one: _Asked, manifest: Manifest) -> Record:
    """The record of a scene that ended whatever ran it."""
    often = f"whatever ran this scene ended {MOST_STARTS} times before it was done; run it alone to see why"
    record = Record(scene=one.scene, options=one.options, error=often)
    manifest.write(record)
    return record


@contextmanager
def _started(job: Job) -> Iterator[BoundLLM]:
    """The engine of an actor."""
    if not isinstance(job.engine, Mapping):
        with engine(job.model, job.engine) as llm:
            yield llm
        return
    prepare_environment()
    check_installed()
    from vllm import LLM

    made = cast("BoundLLM", LLM(found_model(job.model), **job.engine))
    try:
        yield made
    finally:
        made.llm_engine.engine_core.shutdown()
