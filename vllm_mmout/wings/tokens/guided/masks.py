"""Masks: forbids tokens that may not come next, in the logits of requests whose tokens are restricted."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Final

from vllm_mmout.log import logger
from vllm_mmout.wings.tokens.guided.guide import AllowedTokens, Follower

if TYPE_CHECKING:
    import torch

_MOST: Final = 256
"""Maximum number of cached masks. A layout needs a few for each slot of its frames."""


class Masks:
    """A cache of masks. A mask marks the tokens that may not come next in an answer."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, torch.Tensor] = {}
        self._failed = False

    def apply(self, logits: torch.Tensor, followed: Callable[[], Sequence[tuple[int, Follower]]]) -> torch.Tensor:
        """Forbid tokens that may not come next. Tokens forbidden before stay forbidden, unless no token is left.

        Never raises, as an error would end the requests of all users.

        Args:
            logits: [rows, vocabulary], changed in place.
            followed: function that returns the rows of restricted requests, each with its `Follower`.

        """
        try:
            self._apply(logits, followed())
        except Exception:  # noqa: BLE001 - an error here would end other requests
            if not self._failed:
                self._failed = True
                logger.exception("vllm_mmout: requests cannot be guided, and are answered without guidance")
        return logits

    def _apply(self, logits: torch.Tensor, guided: Sequence[tuple[int, Follower]]) -> None:
        import torch

        rows, masks = [], []
        for row, follower in guided:
            allowed = follower.allowed
            if allowed is not None:
                rows.append(row)
                masks.append(self._mask(follower, allowed, logits))
        if not rows:
            return
        forbidden = masks[0] if all(mask is masks[0] for mask in masks) else torch.stack(masks)
        every = rows == list(range(len(logits)))
        index = ... if every else torch.tensor(rows, device=logits.device)
        left = logits[index].masked_fill(forbidden, -torch.inf)
        dead = left.amax(-1, keepdim=True) == -torch.inf
        logits[index] = left.masked_fill_(dead & ~forbidden, 0.0)

    def _mask(self, follower: Follower, allowed: AllowedTokens, logits: torch.Tensor) -> torch.Tensor:
        """Return the mask of forbidden tokens, bool [vocabulary]."""
        key = (allowed, follower.guide.layout if allowed.text else None, follower.guide.stops if allowed.text else None)
        mask = self._kept.get(key)
        if mask is None:
            if len(self._kept) >= _MOST:
                self._kept.clear()
            mask = self._kept[key] = _forbidden(follower, allowed, logits)
        return mask


def _forbidden(follower: Follower, allowed: AllowedTokens, logits: torch.Tensor) -> torch.Tensor:
    import torch

    size = logits.shape[-1]
    forbidden = torch.ones(size, dtype=torch.bool)
    if allowed.text:
        forbidden[:] = False
        others = torch.tensor(sorted({*follower.layout.token_ids, *follower.guide.stops}))
        forbidden[others[others < size]] = True
    for first, stop in allowed.media:
        forbidden[first:stop] = False
    for stop in allowed.stops:
        forbidden[stop : stop + 1] = False
    if forbidden.all():  # all allowed ids are outside the vocabulary
        forbidden[:] = False
    return forbidden.to(logits.device)
