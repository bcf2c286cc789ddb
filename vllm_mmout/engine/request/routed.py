"""The output processor of a bound engine: marked requests go to the decode pool, all others stay with vLLM.

vLLM's own object stays in place and changes its class: the handler task of ``AsyncLLM`` has captured it already.

Nothing may raise out of ``process_outputs``: one exception there ends that task, every request of every user, and the
server. A failure becomes the outcome of its own request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from vllm.v1.engine import FinishReason
from vllm.v1.engine.output_processor import OutputProcessorOutput, RequestState

from vllm_mmout.engine import marker
from vllm_mmout.engine.hooks.validation import InvalidInputError, as_client_error
from vllm_mmout.engine.observer import SILENT, Observer
from vllm_mmout.engine.rebase import rebase
from vllm_mmout.engine.request.decode import ADMISSION, Decoding, Finish, as_it_is, decode_request
from vllm_mmout.engine.request.decode_pool import DecodePool, Job, Outcome
from vllm_mmout.engine.request.holding import HoldingOutputProcessor
from vllm_mmout.engine.request_output import MultimodalRequestOutput
from vllm_mmout.errors import AbortedError, MMOutError, RequestError

if TYPE_CHECKING:
    from vllm.outputs import PoolingRequestOutput, RequestOutput
    from vllm.outputs import RequestError as VLLMRequestError
    from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest
    from vllm.v1.engine.output_processor import RequestOutputCollector
    from vllm.v1.engine.parallel_sampling import ParentRequest

    from vllm_mmout.engine.binding import Binding
    from vllm_mmout.params import OutputParams

NO_TENSOR = torch.empty(0)


@dataclass(slots=True)
class Mark:
    """What a marked request carries from admission to delivery."""

    params: OutputParams
    finish: Finish
    loop: asyncio.AbstractEventLoop | None
    """The loop whose task waits for the result; None in ``LLM``."""
    router: RoutedOutputProcessor
    admitted: float
    """``time.monotonic()``."""


class RoutedRequestState(RequestState):
    """The state of one request of a bound engine."""

    mmout: Mark | None = None

    def make_request_output(
        self,
        new_token_ids: list[int],
        pooling_output: torch.Tensor | None,
        finish_reason: FinishReason | None,
        *args: Any,
        **kwargs: Any,
    ) -> RequestOutput | PoolingRequestOutput[Any] | None:
        """As vLLM's for unmarked requests; a marked one's output is handed to the decode pool and delivered later."""
        mark = self.mmout
        if mark is None:
            return super().make_request_output(new_token_ids, pooling_output, finish_reason, *args, **kwargs)
        if finish_reason is None:
            return None
        shell = MultimodalRequestOutput(
            self.external_req_id, None, self.prompt_token_ids or [], self.num_cached_tokens, finished=True
        )
        refused: VLLMRequestError | None = kwargs.get("error")
        if finish_reason in (FinishReason.ABORT, FinishReason.ERROR) or refused is not None:
            shell.error = _ended(finish_reason, refused)
            return shell
        try:
            mark.router.start_decode(self, mark, shell, NO_TENSOR if pooling_output is None else pooling_output)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not leave process_outputs
            shell.error = error
            return shell
        return None


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


class RoutedOutputProcessor(HoldingOutputProcessor):
    """vLLM's output processor, on an engine whose model has an output processor of ours."""

    binding: Binding
    pool: DecodePool
    pending: PendingDecodes
    """Decodes that have not been delivered."""
    observer: Observer = SILENT
    """Hears of decodes, and of requests that fail."""

    def setup(self, binding: Binding) -> None:
        """Make the routing's own state; called once, when the engine is bound."""
        self.binding = binding
        self.pool = DecodePool(binding.settings.decode_threads, binding.settings.decode_timeout_s)
        self.pending = PendingDecodes()
        self.begin_holding()

    def add_request(
        self,
        request: EngineCoreRequest,
        prompt: str | None,
        parent_req: ParentRequest | None = None,
        request_index: int = 0,
        queue: RequestOutputCollector | None = None,
    ) -> None:
        """As vLLM's, and mark the request's state."""
        params = self._validated(request)
        admission = ADMISSION.get()
        if admission is None:
            marker.without_batch(request.pooling_params)
        else:  # before it is true: an interrupt between the two must find the request
            admission.internal_id = request.request_id
        super().add_request(request, prompt, parent_req, request_index, queue)
        state = self.request_states[request.request_id]
        if request.pooling_params is None:
            return
        state.stream_interval = 1  # vLLM asserts a detokenizer for more than 1, which pooling requests have not
        rebase(state, RoutedRequestState)
        if isinstance(state, RoutedRequestState) and params is not None:
            loop = None if queue is None else asyncio.get_running_loop()
            finish = as_it_is if admission is None else admission.take_finish()
            state.mmout = Mark(params, finish, loop, self, time.monotonic())

    def _validated(self, request: EngineCoreRequest) -> OutputParams | None:
        if self.binding.raw_input and not request.mm_features:
            raise InvalidInputError(
                f"{self.binding.model} takes pictures or tensors, and the request has nothing but"
                f' {len(request.prompt_token_ids or [])} prompt token(s); send "multi_modal_data"'
            )
        try:
            params = marker.read(request.pooling_params)
            if params is not None:
                self.binding.check_params(params)
        except MMOutError as error:
            raise as_client_error(error) from None
        return params

    def process_outputs(
        self, engine_core_outputs: list[EngineCoreOutput], *args: Any, **kwargs: Any
    ) -> OutputProcessorOutput:
        """As vLLM's; an output without a tensor gets an empty one, since vLLM would take it for text and fail."""
        outputs = []
        for output in engine_core_outputs:
            state = self.request_states.get(output.request_id)
            if output.pooling_output is None and state is not None and state.detokenizer is None:
                if not output.finished:
                    continue
                output.pooling_output = NO_TENSOR
            outputs.append(output)
        return super().process_outputs(outputs, *args, **kwargs)

    def start_decode(
        self, state: RoutedRequestState, mark: Mark, shell: MultimodalRequestOutput, buffer: torch.Tensor
    ) -> None:
        """Hand one request's output to the decode pool; it counts as unfinished until it is delivered."""
        arrived, observer = time.monotonic(), self.observer
        decoding = Decoding(
            self.binding.processors, mark.params, mark.finish, shell.request_id, mark.admitted, arrived, observer
        )
        pending = PendingDecode(state, mark, shell, buffer.nbytes, observer)
        try:
            with self.lock:
                self.pending.put(pending)
                pending.job = self.pool.submit(
                    lambda: decode_request(decoding, buffer),
                    lambda outcome: self._deliver_from_thread(pending, outcome),
                )
        except BaseException:  # no thread can be started
            self.pending.take_out(pending)
            raise

    def _deliver_from_thread(self, pending: PendingDecode, outcome: Outcome) -> None:
        loop = pending.mark.loop
        if loop is None:
            with self.lock:
                self._deliver(pending, outcome)
                self.wakeup.notify_all()
            return
        try:
            loop.call_soon_threadsafe(self._deliver, pending, outcome)
        except RuntimeError:  # the loop was closed: nobody waits any more
            self.pending.take_out(pending)

    def _deliver(self, pending: PendingDecode, outcome: Outcome) -> None:
        if not self.pending.take_out(pending):
            return
        if isinstance(outcome, BaseException):
            pending.shell.error = outcome
        else:
            pending.shell.outputs = outcome
        if pending.state.queue is not None:
            pending.state.queue.put(pending.shell)
        else:
            self.ready.append(pending.shell)
        self.delivered()

    def abort_requests(self, request_ids: Iterable[str], internal: bool) -> list[str]:  # noqa: FBT001 - vLLM's signature
        """As vLLM's, and cancel pending decodes, which vLLM no longer knows of."""
        request_ids = list(request_ids)
        for request_id in request_ids:
            self._cancel_decodes(request_id, internal=internal)
        return super().abort_requests(request_ids, internal)

    def _cancel_decodes(self, request_id: str, *, internal: bool) -> None:
        with self.lock:
            for pending in self.pending.called(request_id, internal=internal):
                self.pending.take_out(pending)
                if pending.job is not None:
                    pending.job.cancel()
                pending.shell.error = _ended(FinishReason.ABORT, None)
                if pending.state.queue is not None:
                    pending.state.queue.put(pending.shell)
            self.wakeup.notify_all()

    def close(self) -> None:
        """End the decode threads; what is pending fails."""
        self.pool.close()


def _ended(reason: FinishReason, error: VLLMRequestError | None) -> MMOutError:
    if error is not None:
        return RequestError(f"the engine ended the request: {error.message}")
    if reason == FinishReason.ABORT:
        return AbortedError("the request was aborted before its result was delivered")
    return RequestError("the engine ended the request with an error; its log says why")
