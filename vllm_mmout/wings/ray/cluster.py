"""Run scenes and functions on the nodes of a Ray cluster."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any, Final

import msgspec
import ray
import ray.data

from vllm_mmout.errors import MMOutError
from vllm_mmout.wings.ray.cluster_token import check_listening, refusal
from vllm_mmout.wings.ray.manifest import SceneRecord
from vllm_mmout.wings.ray.pipeline import mapped
from vllm_mmout.wings.ray.predictor import NAME, OPTIONS, RECORD, RunSettings
from vllm_mmout.wings.ray.tasks import P, R, on_a_node

if TYPE_CHECKING:
    from ray.data import Dataset

SCENE: Final = "scene"
"""Dataset column with the path or address of a scene."""
BATCH: Final = 4
"""Number of scenes that an engine processes as one batch."""


class Cluster:
    """Ray cluster whose engines process scenes. `ClusterRun` calls Ray only through this class, which tests replace.

    Args:
        address: address of the cluster; None for RAY_ADDRESS, or for this machine alone if that is not set.
        places: ``workers``, ``num_cpus`` and ``num_gpus`` of `vllm_mmout.ray.predict`.

    """

    def __init__(self, address: str | None, **places: Any) -> None:
        self._address = address
        self._places = places

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Connect to the cluster while the context is open. Ray's own output goes to standard error.

        Raises:
            MMOutError: the cluster does not run, does not accept the token, or ended during the run.

        """
        ours = not ray.is_initialized()
        if ours:
            self._connect()
        try:
            with redirect_stdout(sys.stderr):
                yield
        except ray.exceptions.RayError as error:
            raise MMOutError(f"the run ended before it was done, and can be started again: {_cause(error)}") from error
        finally:
            if ours:
                ray.shutdown()

    def _connect(self) -> None:
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # Ray's log lines would appear among the results
        for name in ("ray", "ray.data"):
            logging.getLogger(name).setLevel(logging.ERROR)
        address = self._address or os.environ.get("RAY_ADDRESS")
        if address:
            check_listening(address)
        try:
            ray.init(address=self._address, log_to_driver=False, configure_logging=False)
        except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
            raise MMOutError(refusal(address, error)) from error

    def records(self, rows: Sequence[Mapping[str, str]], job: RunSettings) -> Iterator[SceneRecord]:
        """Run scenes on the cluster, and yield a record of each scene as soon as the scene is done or has failed.

        `row_of` makes the ``rows``, one for each scene.
        """
        for row in dataset_of(rows, job, **self._places).iter_rows():
            yield msgspec.json.decode(row[RECORD], type=SceneRecord)

    def call(self, name: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a function on any node and return its result. ``name`` is the task's name in Ray's dashboard."""
        return on_a_node(name, function, *args, **kwargs)


def dataset_of(rows: Sequence[Mapping[str, str]], job: RunSettings, **places: Any) -> Dataset:
    """Return a Ray dataset that runs the scenes lazily. Its column `RECORD` holds each scene's outcome as JSON.

    ``places`` has the entries ``workers``, ``num_cpus`` and ``num_gpus`` of `vllm_mmout.ray.predict`.
    """
    ray.data.DataContext.get_current().enable_progress_bars = False  # the command shows its own bar
    scenes = ray.data.from_items(list(rows), override_num_blocks=-(-len(rows) // BATCH))
    dataset = mapped(scenes, job, batch_size=BATCH, **places)
    dataset.set_name("scenes")
    return dataset


def row_of(scene: str, name: str, options: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Return a row of the Ray dataset for a scene. ``name`` is the name of the scene's result files.

    The row holds the options as JSON.
    """
    return {SCENE: scene, NAME: name, OPTIONS: msgspec.json.encode(options or {}, order="sorted").decode()}


def _cause(error: BaseException) -> str:
    """Return the message of the innermost cause of ``error``. Skip causes whose message is empty."""
    cause = getattr(error, "cause", None) or error.__cause__
    message = "" if cause is None else _cause(cause)
    return message or str(error)
