"""Result of ``generate``: decoded objects, or the progress of a scene."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from vllm.outputs import PoolingRequestOutput

from vllm_mmout.errors import AssumedWarning


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a scene in tiles, or of an iterative model in steps."""

    done: int
    """Number of finished tiles of the scene, or of finished steps of the iterative model."""
    total: int
    """Number of all tiles of the scene, or of all steps of the iterative model."""
    partial_index: int | None = None
    """Index (from 0) of the preview image that comes with this progress report. None if no preview image comes with it.
    """


class MultimodalRequestOutput(PoolingRequestOutput[Any]):
    """Decoded result of a request, or a progress report of `AsyncLLM.generate`.

    Attributes:
        request_id: id of the request.
        outputs: the output object, or a dict of output objects by processor if several processors were requested.
            A mosaic with ``each_day`` has a dict by date. Reading it raises ``error`` if the request failed.
        error: the exception if the request failed, or None.
        finished: True for the result, and False for a progress report. The ``outputs`` of a report is None, or an
            `ImageOutput` with a preview of the unfinished result (see ``OutputParams.partial_images``).
        assumed: sentences about assumptions that were made about the input. The outputs have the same attribute.
        progress: number of finished tiles and of all tiles of a scene, or None for an input that fits one forward.

    """

    error: Any
    progress: Progress | None
    assumed: tuple[str, ...]

    def __init__(
        self,
        request_id: str,
        outputs: Any,
        prompt_token_ids: list[int],
        num_cached_tokens: int,
        finished: bool,  # noqa: FBT001 - the signature of the class above
        *,
        error: Any = None,
        progress: Progress | None = None,
        assumed: tuple[str, ...] = (),
    ) -> None:
        super().__init__(request_id, outputs, prompt_token_ids, num_cached_tokens, finished)
        self.error = error  # vLLM's own class has an error only in some releases
        self.progress = progress
        self.assumed = assumed

    @property
    def outputs(self) -> Any:
        """Decoded output object, or a dict of output objects by processor name.

        Raises:
            MMOutError: the request failed. The exception is ``error``.

        """
        if isinstance(self.error, Exception):
            raise self.error
        return self._outputs

    @outputs.setter
    def outputs(self, value: Any) -> None:
        self._outputs = value

    def __repr__(self) -> str:
        content = f"outputs={self._outputs!r}" if self.error is None else f"error={self.error!r}"
        return f"{type(self).__name__}(request_id={self.request_id!r}, {content}, finished={self.finished})"


def warn_assumed(results: Iterable[MultimodalRequestOutput], stacklevel: int) -> None:
    """Issue an `AssumedWarning` for each different assumption that was made about the inputs.

    ``stacklevel`` is passed to `warnings.warn`.
    """
    for text in dict.fromkeys(text for result in results for text in result.assumed):
        warnings.warn(text, AssumedWarning, stacklevel=stacklevel)
