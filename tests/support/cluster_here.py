"""What Ray schedules for a run, in this process: batches of rows, begun again where what runs them has ended."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np

from vllm_mmout.errors import InputError
from vllm_mmout.geo import in_bucket, open_in_bucket
from vllm_mmout.wings.ray.cluster import BATCH, Cluster
from vllm_mmout.wings.ray.manifest import SceneRecord
from vllm_mmout.wings.ray.predictor import RECORD, Predictor


class WorkerEnded(BaseException):
    """The process of a worker has ended, as `os._exit` ends it."""


class Copying(Predictor):
    """Predictor without an engine that copies each scene. A scene with "ends" in its name ends the worker.

    Something is assumed about a scene with "undated" in its name.
    """

    log: list

    def __init__(self):
        pass

    def _run(self, scenes, params, may_be_empty):
        self.log.append([Path(scene).name for scene in scenes])
        results = []
        for scene, asked in zip(scenes, params, strict=True):
            if "ends" in Path(scene).name:
                raise WorkerEnded
            content = open_in_bucket(scene).read() if in_bucket(scene) else Path(scene).read_bytes()
            if not content:
                results.append(SimpleNamespace(error=InputError("the file is empty"), outputs=None, assumed=()))
                continue
            Path(asked.path).mkdir()
            Path(asked.path, f"{Path(scene).stem}.tif").write_bytes(content)
            assumed = ("its date is unknown.",) if "undated" in Path(scene).name else ()
            results.append(SimpleNamespace(error=None, outputs=None, assumed=assumed))
        return results


class ClusterHere(Cluster):
    """A cluster that runs everything in this process; ``log`` has the names of the scenes that ran together."""

    def __init__(self):
        self.log = []

    @contextmanager
    def connected(self):
        """Be connected."""
        yield

    def records(self, rows, job):
        """Run each batch until nothing ends its worker, as Ray does with an actor."""
        workers = type("Worker", (Copying,), {"job": job, "log": self.log})
        for start in range(0, len(rows), BATCH):
            batch = rows[start : start + BATCH]
            columns = {name: np.array([row[name] for row in batch], object) for name in batch[0]}
            yield from (msgspec.json.decode(record, type=SceneRecord) for record in self._insist(workers, columns))

    def _insist(self, workers, columns):
        while True:
            try:
                return workers()(columns)[RECORD]
            except WorkerEnded:
                continue

    def call(self, name, function, *args, **kwargs):
        """Call it."""
        return function(*args, **kwargs)
