"""Set the logits of tokens that a request's `Guide` forbids to minus infinity."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Final

from vllm_mmout.log import logger
from vllm_mmout.wings.tokens.guided.guide import AllowedTokens, TokenTracker

if TYPE_CHECKING:
    import torch

_MAX_MASKS: Final = 256
"""Maximum number of token masks in the cache. The cache is emptied when it is full."""


class Masks:
    """Cache of boolean masks over the vocabulary, which mark the tokens that an answer may not contain next."""

    def __init__(self) -> None:
        self._masks: dict[Hashable, torch.Tensor] = {}
        self._failed = False

    def apply(self, logits: torch.Tensor, tracked: Callable[[], Sequence[tuple[int, TokenTracker]]]) -> torch.Tensor:
        """Set the logits of forbidden tokens to minus infinity. If no finite logit is left, the allowed tokens get 0.

        Never raises, as an error would end the requests of all users.

        Args:
            logits: [rows, vocabulary], changed in place.
            tracked: function that returns the rows of restricted requests, each with its `TokenTracker`.

        """
        try:
            self._apply(logits, tracked())
        except Exception:  # noqa: BLE001 - an error here would end other requests
            if not self._failed:
                self._failed = True
                logger.exception("vllm_mmout: requests cannot be guided, and are answered without guidance")
        return logits

    def _apply(self, logits: torch.Tensor, guided: Sequence[tuple[int, TokenTracker]]) -> None:
        import torch

        rows, masks = [], []
        for row, tracker in guided:
            allowed = tracker.allowed
            if allowed is not None:
                rows.append(row)
                masks.append(self._mask(tracker, allowed, logits))
        if not rows:
            return
        forbidden = masks[0] if all(mask is masks[0] for mask in masks) else torch.stack(masks)
        every = rows == list(range(len(logits)))
        index = ... if every else torch.tensor(rows, device=logits.device)
        left = logits[index].masked_fill(forbidden, -torch.inf)
        dead = left.amax(-1, keepdim=True) == -torch.inf
        logits[index] = left.masked_fill_(dead & ~forbidden, 0.0)

    def _mask(self, tracker: TokenTracker, allowed: AllowedTokens, logits: torch.Tensor) -> torch.Tensor:
        """Return the mask of tokens that a request may not generate next, bool [vocabulary]."""
        key = (allowed, tracker.guide.layout if allowed.text else None, tracker.guide.stops if allowed.text else None)
        mask = self._masks.get(key)
        if mask is None:
            if len(self._masks) >= _MAX_MASKS:
                self._masks.clear()
            mask = self._masks[key] = _forbidden(tracker, allowed, logits)
        return mask


def _forbidden(tracker: TokenTracker, allowed: AllowedTokens, logits: torch.Tensor) -> torch.Tensor:
    import torch

    size = logits.shape[-1]
    forbidden = torch.ones(size, dtype=torch.bool)
    if allowed.text:
        forbidden[:] = False
        others = torch.tensor(sorted({*tracker.layout.token_ids, *tracker.guide.stops}))
        forbidden[others[others < size]] = True
    for first, stop in allowed.media:
        forbidden[first:stop] = False
    for stop in allowed.stops:
        forbidden[stop : stop + 1] = False
    if forbidden.all():  # all allowed ids are outside the vocabulary
        forbidden[:] = False
    return forbidden.to(logits.device)
