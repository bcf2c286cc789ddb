"""Decode previews of a picture while the model is still generating its rows."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from vllm_mmout.outputs import ImageOutput
from vllm_mmout.outputs.partial_images import moments
from vllm_mmout.params import OutputParams
from vllm_mmout.wings.tokens.processors.base import marked

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vllm_mmout.wings.tokens.engine.batcher import MediaBatcher, MediaJob
    from vllm_mmout.wings.tokens.layouts import Medium
    from vllm_mmout.wings.tokens.layouts.parser import StreamParser

_FILL = 128
"""Grey level, 0 to 255, for the rows of a preview that the model has not generated yet."""


class GrowingPictures:
    """Previews of the pictures in one answer, decoded while the model generates their rows.

    ``settled`` is called in any thread whenever a picture has been decoded.

    Preview k of ``partial_images`` is due when ``k / (partial_images + 1)`` of the ``rows`` are complete. A preview
    that is not decoded before the picture ends is dropped. A preview that fails is dropped too, as the picture will
    report the error.
    """

    def __init__(self, rows: int, params: OutputParams, batcher: MediaBatcher, settled: Callable[[], None]) -> None:
        self.error: Exception | None = None
        """Always None, because a preview that cannot be decoded is dropped without an error.

        The attribute exists because `MediaStream` reads ``error`` of both `GrowingPictures` and `GrowingSounds`."""
        self._rows = rows
        self._moments = moments(params.partial_images, rows)
        self._params = params
        self._batcher = batcher
        self._settled = settled
        self._start: int | None = None
        """Index of the current picture's first token in the answer. None between pictures."""
        self._preview_rows: list[int] = []
        """Numbers of complete rows that make the next previews of the current picture due, in ascending order."""
        self._jobs: list[MediaJob] = []
        self._previews: list[ImageOutput] = []
        self._lock = Lock()

    def advance(self, parser: StreamParser) -> None:
        """Submit a preview for decoding if enough rows of the picture in ``parser`` are generated.

        No error is raised. If the preview cannot be submitted, the picture gets no further previews.
        """
        if (begun := parser.begun) is None:
            return
        start, rows = begun
        if start != self._start:
            self.cancel()
            self._start, self._preview_rows = start, list(self._moments)
        if not self._preview_rows or rows < self._preview_rows[0]:
            return
        self._preview_rows = [row for row in self._preview_rows if row > rows]
        try:
            medium = parser.so_far()
            self._jobs.append(self._batcher.submit(medium, self._params, self._keep))
        except Exception:  # noqa: BLE001 - the engine is shut down or has no thread left, which the picture will report
            self._preview_rows = []

    def end(self, medium: Medium) -> MediaJob:
        """Submit a finished picture for decoding, and cancel its unfinished previews."""
        self.cancel()
        return self._batcher.submit(medium, self._params, lambda _: self._settled())

    def take(self) -> list[ImageOutput]:
        """Return the previews decoded since the last call."""
        with self._lock:
            previews, self._previews = self._previews, []
        return previews

    def cancel(self) -> None:
        """Cancel the previews that are not decoded yet."""
        for job in self._jobs:
            job.cancel()
        self._jobs.clear()
        self._start, self._preview_rows = None, []

    def _keep(self, job: MediaJob) -> None:
        """Store a decoded preview until `take` returns it. Called in any thread."""
        picture = job.outcome
        if isinstance(picture, ImageOutput):
            preview = marked(ImageOutput(self._padded_with_grey(picture, job.medium)), job.medium)
            with self._lock:
                self._previews.append(preview)

    def _padded_with_grey(self, picture: ImageOutput, medium: Medium) -> NDArray[np.uint8]:
        """Return a preview's pixels at the full height of the picture, with grey in place of missing rows."""
        height = picture.height * self._rows // medium.codes[0].shape[0]
        missing = np.full((max(0, height - picture.height), *picture.array.shape[1:]), _FILL, np.uint8)
        return np.concatenate([picture.array, missing])
