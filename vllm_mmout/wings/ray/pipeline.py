"""``vllm_mmout.ray``: models of ours in a pipeline of Ray Data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vllm_mmout.errors import MMOutError, OptionError
from vllm_mmout.params import OutputParams

if TYPE_CHECKING:
    from ray.data import Dataset

    from vllm_mmout.wings.ray.predictor import Job

__all__ = ["predict"]


def predict(
    dataset: Dataset,
    model: str,
    params: OutputParams | None = None,
    *,
    column: str = "scene",
    engine: Mapping[str, Any] | None = None,
    batch_size: int = 4,
    workers: int | tuple[int, int] | None = None,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
) -> Dataset:
    """Run a model on each row of a dataset of Ray Data, in actors that each keep an engine.

    Args:
        dataset: rows with a scene each; all their columns stay.
        model: folder, hub id, or embedded model, as every node finds it.
        params: options, the same for all; a column ``options``, where there is one, has more of a row's own as JSON.
            With a ``path``, a folder or bucket that all nodes reach, results are written there.
        column: the column that holds the inputs: what ``LLM.generate`` takes, such as a path or an address.
        engine: arguments of ``vllm.LLM``.
        batch_size: rows that an engine works on at once; while one is read another one is run.
        workers: actors, or the fewest and the most; by default as many as the cluster has place for.
        num_cpus: processors of an actor; by default all of the smallest node, or one where it has a GPU.
        num_gpus: GPUs of an actor; by default one where the cluster has any.

    Returns:
        The dataset with, for each row, ``error`` (text, None where all went well), and ``path``, or without one
        ``output``: the bytes of a file of the usual format, and ``format``, its name. Of several processors each has
        its own, as ``output_mask``.

    Raises:
        OptionError: the options do not fit together.

    """
    from vllm_mmout.wings.ray.predictor import Job

    params = OutputParams() if params is None else params
    if params.sampling is not None or params.partial_images:
        option = "partial_images" if params.partial_images else "sampling"
        raise OptionError(f"{option} is not for datasets; leave it out", param=option)
    if column not in (dataset.columns() or [column]):
        raise OptionError(f"the dataset has no column {column!r} ({', '.join(dataset.columns() or ())}); name it")
    job = Job(model, params, dict(engine or {}), column)
    return mapped(dataset, job, batch_size=batch_size, workers=workers, num_cpus=num_cpus, num_gpus=num_gpus)


def mapped(
    dataset: Dataset,
    job: Job,
    *,
    batch_size: int,
    workers: int | tuple[int, int] | None = None,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
) -> Dataset:
    """The dataset with each batch run by an actor."""
    from ray.data import ActorPoolStrategy

    from vllm_mmout.wings.ray.predictor import Predictor

    cpus, gpus, room = _places(num_cpus, num_gpus)
    least, most = (1, room) if workers is None else (workers, workers) if isinstance(workers, int) else workers
    return dataset.map_batches(
        Predictor.of(job),
        batch_size=batch_size,
        # The fewest are one in any case: an actor whose node has died waits for the place of one that has no work.
        compute=ActorPoolStrategy(min_size=min(least, most), max_size=most, initial_size=most),
        num_cpus=cpus,
        num_gpus=gpus,
        udf_modifying_row_count=False,
    )


def _places(num_cpus: float | None, num_gpus: float | None) -> tuple[float, float, int]:
    """Processors and GPUs of an actor, and how many the cluster has place for."""
    import ray

    if not ray.is_initialized():
        ray.init()
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    if num_gpus is None:
        num_gpus = 1 if any(node.get("GPU", 0) for node in nodes) else 0
    fit = [node for node in nodes if node.get("GPU", 0) >= num_gpus and node.get("CPU", 0)]
    if not fit:
        raise MMOutError(f"no node of the cluster has {num_gpus:g} GPUs and a processor; name fewer with num_gpus")
    if num_cpus is None:
        num_cpus = 1 if num_gpus else min(node["CPU"] for node in fit)
    each = [(("CPU", num_cpus), ("GPU", num_gpus))] * len(fit)
    room = sum(
        int(min(node.get(kind, 0) / wanted for kind, wanted in wants if wanted))
        for node, wants in zip(fit, each, strict=True)
    )
    return num_cpus, num_gpus, max(room, 1)
