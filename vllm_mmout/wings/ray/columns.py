"""Convert batches of a Ray dataset to rows, and results to dataset columns."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import OptionError
from vllm_mmout.outputs.base import Savable
from vllm_mmout.serving.response.answer_budget import AnswerBudget
from vllm_mmout.serving.response.plain_results import as_json, as_media

if TYPE_CHECKING:
    from vllm_mmout.engine.request_output import MultimodalRequestOutput
    from vllm_mmout.params import OutputParams


def rows_of(batch: Mapping[str, NDArray[Any]]) -> list[dict[str, Any]]:
    """Return the rows of a batch. Each row is a dict from column name to value."""
    return [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]


def columns_of(results: Sequence[MultimodalRequestOutput], params: OutputParams) -> dict[str, NDArray[Any]]:
    """Convert results to the columns that `vllm_mmout.ray.predict` adds to a batch of a Ray dataset.

    The columns are ``error``, and ``path`` if files were written, otherwise ``output`` (bytes of a file) and
    ``format``. With several processors or kinds of output, each of them has its own columns, such as ``output_mask``.
    """
    several = bool(params.named)
    columns: dict[str, list[Any]] = {"error": [None if r.error is None else str(r.error) for r in results]}
    for pick in params.named or ("",):
        end = f"_{pick}" if several else ""
        outputs = [None if r.error is not None else r.outputs[pick] if several else r.outputs for r in results]
        if params.path is not None:
            columns[f"path{end}"] = [getattr(output, "path", None) for output in outputs]
            continue
        files = [_file(output) for output in outputs]
        columns[f"output{end}"] = [content for content, _ in files]
        columns[f"format{end}"] = [name for _, name in files]
    return {name: np.array([*values, None], object)[:-1] for name, values in columns.items()}


def _file(output: Any) -> tuple[bytes | None, str | None]:
    """Encode ``output`` in its default file format, and return (bytes, format name).

    Return (None, None) if ``output`` is None.
    """
    if output is None:
        return None, None
    unbounded = AnswerBudget(sys.maxsize)
    output = as_media(output, unbounded)
    try:
        if isinstance(output, Savable):
            return output.to_bytes(), next(iter(output.formats.values()))
        return as_json(output, unbounded)[0], "json"
    except OptionError as error:
        raise OptionError(str(error).replace("over HTTP", "in a dataset")) from error
    finally:
        if hasattr(output, "close"):
            output.close()
