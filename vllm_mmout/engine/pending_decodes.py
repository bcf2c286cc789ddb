"""PendingDecodes: requests that the engine is done with, until their results are delivered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm_mmout.engine.decode_pool import Job
    from vllm_mmout.engine.observer import Observer
    from vllm_mmout.engine.request_output import MultimodalRequestOutput
    from vllm_mmout.engine.routed import Mark, RoutedRequestState


@dataclass(slots=True)
class PendingDecode:
    """A request that the engine is done with and whose output is being decoded."""

    state: RoutedRequestState
    mark: Mark
    shell: MultimodalRequestOutput
    nbytes: int
    observer: Observer
    job: Job | None = None


class PendingDecodes(dict[str, PendingDecode]):
    """Decodes that have not been delivered, by internal request id; observers hear of each when it comes and goes."""

    def put(self, pending: PendingDecode) -> None:
        """Take one in."""
        self[pending.state.request_id] = pending
        pending.observer.waits(pending.nbytes)

    def take_out(self, pending: PendingDecode) -> bool:
        """Let one go; False if it was none of them any more."""
        taken = self.pop(pending.state.request_id, None)
        if taken is not None:
            taken.observer.settled(taken.nbytes)
        return taken is not None

    def called(self, request_id: str, *, internal: bool) -> list[PendingDecode]:
        """Those of an internal request id, one at most, or of a caller's own, which may repeat."""
        names = [(key if internal else entry.state.external_req_id, entry) for key, entry in self.items()]
        return [entry for name, entry in names if name == request_id]
