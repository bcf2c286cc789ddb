"""Separate the tokens of one answer into text and media, and submit complete pictures and sounds for decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any

from vllm_mmout.errors import MMOutError
from vllm_mmout.outputs import MediaOutput
from vllm_mmout.params import OutputParams
from vllm_mmout.wings.tokens.engine.batcher import MediaBatcher, MediaJob
from vllm_mmout.wings.tokens.engine.growing_pictures import GrowingPictures
from vllm_mmout.wings.tokens.engine.growing_sounds import GrowingSound, GrowingSounds
from vllm_mmout.wings.tokens.layouts.layout import TokenLayout
from vllm_mmout.wings.tokens.layouts.parser import Medium, StreamParser
from vllm_mmout.wings.tokens.processors.base import marked


class MediaTokenFilter:
    """Text filter that drops all tokens of pictures and sounds, for requests that do not decode them."""

    def __init__(self, media: AbstractSet[int]) -> None:
        self._media = media

    def feed(self, token_ids: list[int], *, stopped: bool) -> list[bool]:
        """Return a flag for each token: True if the token is text."""
        return [token not in self._media for token in token_ids]


class MediaStream:
    """Token stream of one answer, which submits each complete picture or sound for decoding.

    The prompt tells whether the answer begins inside a picture or sound. ``settled`` is called in any thread whenever a
    picture or sound has been decoded.
    """

    def __init__(
        self,
        layout: TokenLayout,
        prompt: Sequence[int],
        params: OutputParams,
        batcher: MediaBatcher,
        settled: Callable[[], None],
        *,
        growing: GrowingSounds | GrowingPictures | None = None,
    ) -> None:
        self.growing = growing
        """Decoder of previews or sound chunks, which runs while the answer is unfinished. None if the request asks for
        neither."""
        self._new_parser = partial(StreamParser, layout, opened=layout.opened_by(prompt))
        self._parser = self._new_parser()
        self._params = params
        self._batcher = batcher
        self._settled = settled
        self._unsubmitted: list[Medium] = []
        """Pictures and sounds that are not submitted for decoding, because the answer has failed or was cancelled."""
        self.jobs: list[MediaJob | GrowingSound] = []
        self.error: Exception | None = None
        """Error that makes the answer fail, or None."""
        self.cancelled = False

    def feed(self, token_ids: list[int], *, stopped: bool) -> list[bool]:
        """Process new tokens of the answer. Return a flag for each token: True if the token is text.

        No error is raised. Errors are stored in ``error``.
        """
        is_text = self._parser.feed(token_ids, stopped=stopped)
        if self.growing is None:
            self._take(self._parser.take())
        else:
            self.error = self.error or self._parser.error
        return is_text

    def advance(self) -> None:
        """Submit incomplete pictures and sounds for decoding, so that the client gets previews or chunks.

        Called after `feed`, unless the answer has ended: vLLM may then drop the last tokens.
        """
        if self.growing is None or self.cancelled:
            return
        self._take(self._parser.take())
        if self.error is None:
            self.growing.advance(self._parser)
        self.error = self.error or self.growing.error

    def finish(self, token_ids: list[int]) -> None:
        """Submit the remaining pictures and sounds of a finished answer for decoding. ``token_ids`` are all its tokens.

        vLLM drops tokens that came after a stop in the same step. The answer is then parsed again without them.
        """
        if len(token_ids) < self._parser.seen:
            self._parse_again(token_ids)
        else:
            self._take(self._parser.finish())

    def cancel(self) -> None:
        """Cancel all decoding for this answer, because nobody waits for it."""
        self.cancelled = True
        if self.growing is not None:
            self.growing.cancel()
        for job in self.jobs:
            job.cancel()
        self.jobs.clear()

    @property
    def decoded(self) -> bool:
        """Return whether all pictures and sounds that were submitted so far have been decoded."""
        return all(job.done is None for job in self.jobs)

    def objects(self) -> list[Any]:
        """Return the decoded pictures and sounds of the answer, in token order. Raise the first decoding error."""
        for job in self.jobs:
            if isinstance(job.outcome, BaseException):
                raise job.outcome
        return [_labelled(job) for job in self.jobs]

    def _parse_again(self, token_ids: list[int]) -> None:
        """Parse an answer again after vLLM dropped its last tokens, and discard media that contained dropped tokens."""
        before, self._parser = self._parser.error, self._new_parser()
        self._parser.feed(token_ids)
        media = self._parser.finish()
        if self.error is before:
            self.error = self._parser.error
        for job in self.jobs:
            if job.medium not in media:
                job.cancel()
        self.jobs = [job for job in self.jobs if job.medium in media]
        self._unsubmitted = []
        self._take(media[len(self.jobs) :])  # the first media are being decoded already

    def _take(self, media: list[Medium]) -> None:
        self._unsubmitted += media
        self.error = self.error or self._parser.error
        if self.cancelled or self.error is not None:
            return
        due, self._unsubmitted = self._unsubmitted, []
        try:
            for medium in due:
                self.jobs.append(self._decode(medium))
        except MMOutError as error:  # the engine is shut down, or its threads hang
            self.error = error
        except RuntimeError as error:  # the system cannot start a thread
            self.error = error

    def _decode(self, medium: Medium) -> MediaJob | GrowingSound:
        if self.growing is not None:
            return self.growing.end(medium)
        return self._batcher.submit(medium, self._params, lambda _: self._settled())


def _labelled(job: MediaJob | GrowingSound) -> Any:
    """Return the decoded picture or sound of a job, with ``partial`` and ``span`` set if it is a `MediaOutput`."""
    medium: Any = job.medium
    return marked(job.outcome, medium) if isinstance(job.outcome, MediaOutput) else job.outcome
