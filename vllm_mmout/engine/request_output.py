"""MultimodalRequestOutput: what ``generate`` returns for one input."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from vllm.outputs import PoolingRequestOutput

from vllm_mmout.errors import AssumedWarning


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a scene."""

    done: int
    """Number of joined tiles, including tiles without any observation."""
    total: int
    """Number of tiles of the scene."""
    partial_index: int | None = None
    """Index of the picture of the growing result in this report, from 0, or None for a report without a picture."""


class MultimodalRequestOutput(PoolingRequestOutput[Any]):
    """The decoded result of one request.

    Attributes:
        request_id: id of the request.
        outputs: the output object; with several processors asked for, a dict of them by name. Reading it raises
            ``error`` where the request failed.
        error: the exception that the request failed with, or None.
        finished: False for a progress report of `AsyncLLM.generate`, whose ``outputs`` is None, or an `ImageOutput` of
            what is finished (``OutputParams.partial_images``); True for the result.
        assumed: what was assumed about the input, in sentences; each output's own attribute says the same.
        progress: of a scene, tiles done and total; None for an input that fitted one forward.

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
        self.error = error  # not all releases' own class has one
        self.progress = progress
        self.assumed = assumed

    @property
    def outputs(self) -> Any:
        """The decoded object or objects.

        Raises:
            MMOutError: the request failed; the same exception as ``error``.

        """
        if isinstance(self.error, Exception):
            raise self.error
        return self._outputs

    @outputs.setter
    def outputs(self, value: Any) -> None:
        self._outputs = value

    def __repr__(self) -> str:
        what = f"outputs={self._outputs!r}" if self.error is None else f"error={self.error!r}"
        return f"{type(self).__name__}(request_id={self.request_id!r}, {what}, finished={self.finished})"


def warn_assumed(results: Iterable[MultimodalRequestOutput], stacklevel: int) -> None:
    """Warn once for each assumption about the inputs; ``stacklevel`` is that of `warnings.warn`."""
    for text in dict.fromkeys(text for result in results for text in result.assumed):
        warnings.warn(text, AssumedWarning, stacklevel=stacklevel)
