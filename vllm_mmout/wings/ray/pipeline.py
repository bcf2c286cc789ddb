"""Public module ``vllm_mmout.ray``, which runs models on datasets of Ray Data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vllm_mmout.errors import MMOutError, OptionError
from vllm_mmout.params import OutputParams

if TYPE_CHECKING:
    from ray.data import Dataset

    from vllm_mmout.wings.ray.predictor import RunSettings

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
    """Run a model on each row of a Ray Data dataset, in actors that keep their engines loaded.

    Args:
        dataset: rows with one scene each. All columns are kept.
        model: folder, hub id, or embedded model, which every node must be able to find.
        params: options for all rows. A column ``options`` may hold further options of a row as JSON. With a ``path``,
            results are written to that folder or bucket, which all nodes must reach.
        column: name of the column that holds the inputs of ``LLM.generate``, such as paths or addresses.
        engine: arguments of ``vllm.LLM``.
        batch_size: number of rows that an engine works on at once. The next batch is read while one runs.
        workers: number of actors, or (minimum, maximum); by default as many as the cluster has room for.
        num_cpus: processors of an actor; by default all of the smallest node, or 1 if actors have a GPU.
        num_gpus: GPUs of an actor; by default 1 if a node has any, otherwise 0.

    Returns:
        The dataset with a column ``error`` (text, or None for success), and further columns for the result: ``path``
        if ``params`` has a path, otherwise ``output`` (bytes of a file in its default format) and ``format`` (its
        name). With several processors each has its own columns, such as ``output_mask``.

    Raises:
        OptionError: the options do not fit together.

    """
    from vllm_mmout.wings.ray.predictor import RunSettings

    params = OutputParams() if params is None else params
    if params.sampling is not None or params.partial_images:
        option = "partial_images" if params.partial_images else "sampling"
        raise OptionError(f"{option} does not work with datasets; leave it out", param=option)
    if column not in (dataset.columns() or [column]):
        raise OptionError(f"the dataset has no column {column!r} ({', '.join(dataset.columns() or ())}); name it")
    job = RunSettings(model, params, dict(engine or {}), column)
    return mapped(dataset, job, batch_size=batch_size, workers=workers, num_cpus=num_cpus, num_gpus=num_gpus)


def mapped(
    dataset: Dataset,
    job: RunSettings,
    *,
    batch_size: int,
    workers: int | tuple[int, int] | None = None,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
) -> Dataset:
    """Return the dataset with the model's results added as columns. Ray actors run the model batch by batch."""
    from ray.data import ActorPoolStrategy

    from vllm_mmout.wings.ray.predictor import Predictor

    cpus, gpus, room = _actor_resources(num_cpus, num_gpus)
    least, most = (1, room) if workers is None else (workers, workers) if isinstance(workers, int) else workers
    return dataset.map_batches(
        Predictor.of(job),
        batch_size=batch_size,
        # The pool may shrink to one actor by default, so that an actor whose node has died can restart in the place of
        # an idle actor.
        compute=ActorPoolStrategy(min_size=min(least, most), max_size=most, initial_size=most),
        num_cpus=cpus,
        num_gpus=gpus,
        udf_modifying_row_count=False,
    )


def _actor_resources(num_cpus: float | None, num_gpus: float | None) -> tuple[float, float, int]:
    """Return (CPUs per actor, GPUs per actor, number of actors that fit into the cluster)."""
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
