"""Masks: which tokens of a vocabulary may come next, a row for each guided request of a step."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Final

from vllm_mmout.log import logger
from vllm_mmout.wings.tokens.guided.guide import Allowed, Follower

if TYPE_CHECKING:
    import torch

_MOST: Final = 256
"""Masks that are kept; a layout has some few for each slot of its frames."""


class Masks:
    """Leaves guided requests the tokens that may come next; masks are made once and kept."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, torch.Tensor] = {}
        self._failed = False

    def apply(self, logits: torch.Tensor, followed: Callable[[], Sequence[tuple[int, Follower]]]) -> torch.Tensor:
        """Forbid what does not fit; what others have forbidden too stays so, but where nothing at all would be left.

        It never raises: that would end the requests of everybody.

        Args:
            logits: [rows, vocabulary]; changed in place.
            followed: gives the rows that are guided, and who has followed their tokens.

        """
        try:
            self._apply(logits, followed())
        except Exception:  # noqa: BLE001 - whatever it is, others must not end by it
            if not self._failed:
                self._failed = True
                logger.exception("vllm_mmout: requests cannot be guided, and are answered as if they had not asked")
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

    def _mask(self, follower: Follower, allowed: Allowed, logits: torch.Tensor) -> torch.Tensor:
        """Which tokens are forbidden: [vocabulary], bool."""
        key = (allowed, follower.guide.layout if allowed.text else None, follower.guide.stops if allowed.text else None)
        mask = self._kept.get(key)
        if mask is None:
            if len(self._kept) >= _MOST:
                self._kept.clear()
            mask = self._kept[key] = _forbidden(follower, allowed, logits)
        return mask


def _forbidden(follower: Follower, allowed: Allowed, logits: torch.Tensor) -> torch.Tensor:
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
    if forbidden.all():  # ids that the model does not have
        forbidden[:] = False
    return forbidden.to(logits.device)
