"""Send the engine's outputs to a pool of threads that decode them.

Outputs of requests for raw tensors are left to vLLM.

vLLM's own object stays in place and only changes its class, because the handler task of ``AsyncLLM`` holds it.

An exception that leaves ``process_outputs`` would crash that task, all requests and the server. A failure therefore
becomes the result of its own request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from vllm.v1.engine import FinishReason
from vllm.v1.engine.output_processor import OutputProcessorOutput, RequestState

from vllm_mmout.engine import wire
from vllm_mmout.engine.binding import rebase
from vllm_mmout.engine.decode_pool import DecodePool, Outcome
from vllm_mmout.engine.hooks.client_errors import InvalidInputError, as_client_error
from vllm_mmout.engine.observer import SILENT, Observer
from vllm_mmout.engine.request.decode import Decoding, Decodings
from vllm_mmout.engine.request.holding_output_processor import HoldingOutputProcessor
from vllm_mmout.engine.request.request import Request, ticket
from vllm_mmout.engine.request_output import MultimodalRequestOutput
from vllm_mmout.errors import AbortedError, MMOutError, OptionError, RequestError

if TYPE_CHECKING:
    from vllm.outputs import PoolingRequestOutput, RequestOutput
    from vllm.outputs import RequestError as VLLMRequestError
    from vllm.pooling_params import PoolingParams
    from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest
    from vllm.v1.engine.output_processor import RequestOutputCollector
    from vllm.v1.engine.parallel_sampling import ParentRequest

    from vllm_mmout.engine.binding import Binding

NO_TENSOR = torch.empty(0)


class RoutedRequestState(RequestState):
    """vLLM's state of a request, extended by the options for decoding the request's output."""

    mmout: Request | None = None
    """Request with the options for decoding, or None if the caller wants vLLM's raw tensor."""
    router: RoutedOutputProcessor

    def make_request_output(
        self,
        new_token_ids: list[int],
        pooling_output: torch.Tensor | None,
        finish_reason: FinishReason | None,
        *args: Any,
        **kwargs: Any,
    ) -> RequestOutput | PoolingRequestOutput[Any] | None:
        """Queue an output for decoding and return None. Return vLLM's own output if the caller wants the raw tensor.

        An output that needs no decode, of a request that failed or was aborted, is returned with its ``error``.
        """
        request = self.mmout
        if request is None:
            return super().make_request_output(new_token_ids, pooling_output, finish_reason, *args, **kwargs)
        progress = None
        if finish_reason is None and pooling_output is not None:
            progress = request.next_report()
        if finish_reason is None and progress is None:
            return None
        shell = MultimodalRequestOutput(
            self.external_req_id,
            None,
            self.prompt_token_ids or [],
            self.num_cached_tokens,
            finished=finish_reason is not None,
            progress=progress,
            assumed=request.assumed,
        )
        engine_error: VLLMRequestError | None = kwargs.get("error")
        if finish_reason is not None and (
            finish_reason in (FinishReason.ABORT, FinishReason.ERROR) or engine_error is not None
        ):
            shell.error = _ended(finish_reason, engine_error)
            return shell
        try:
            self.router.start_decode(self, request, shell, NO_TENSOR if pooling_output is None else pooling_output)
        except Exception as error:  # noqa: BLE001 - no exception may leave process_outputs
            shell.error = error
            return shell
        return None


class RoutedOutputProcessor(HoldingOutputProcessor):
    """vLLM's output processor, extended to decode results in a pool of threads."""

    binding: Binding
    pool: DecodePool
    pending: Decodings
    observer: Observer = SILENT

    def setup(self, binding: Binding) -> None:
        """Initialize the fields that vLLM's output processor lacks. Called once, before the first request."""
        self.binding = binding
        self.pool = DecodePool(binding.settings.decode_threads, binding.settings.decode_timeout_s)
        self.pending = Decodings()
        self.begin_holding()

    def add_request(
        self,
        request: EngineCoreRequest,
        prompt: str | None,
        parent_req: ParentRequest | None = None,
        request_index: int = 0,
        queue: RequestOutputCollector | None = None,
    ) -> None:
        """Add a request as vLLM does. If the request has decoding options, store them in its `RoutedRequestState`."""
        self._check_has_input(request)
        ours = ticket(Request)
        if ours is not None:  # set before vLLM adds the request, so that an interrupt in between can abort it
            ours.internal_id = request.request_id
        else:
            ours = self._read(request.pooling_params)
        super().add_request(request, prompt, parent_req, request_index, queue)
        state = self.request_states[request.request_id]
        if request.pooling_params is None:
            return
        state.stream_interval = 1  # a larger value needs a detokenizer, which pooling requests lack
        rebase(state, RoutedRequestState)
        if isinstance(state, RoutedRequestState) and ours is not None:
            ours.loop = None if queue is None else asyncio.get_running_loop()
            ours.admitted = time.monotonic()
            ours.steps = len(request.prompt_token_ids or [])
            state.router, state.mmout = self, ours

    def do_tracing(self, engine_core_output: EngineCoreOutput, req_state: RequestState, iteration_stats: Any) -> None:
        """Trace a request as vLLM does. Do nothing with ``--disable-log-stats``, which makes vLLM's method fail."""
        if iteration_stats is not None and req_state.stats is not None:
            super().do_tracing(engine_core_output, req_state, iteration_stats)

    def _check_has_input(self, request: EngineCoreRequest) -> None:
        """Raise if a request lacks tensors but the model takes only tensors. The engine would crash on it."""
        if self.binding.raw_input and not request.mm_features:
            raise InvalidInputError(
                f"{self.binding.model} takes pictures or tensors, but the request has only"
                f' {len(request.prompt_token_ids or [])} prompt token(s); send "multi_modal_data"'
            )

    def _read(self, pooling_params: PoolingParams | None) -> Request | None:
        """Read and check the decoding options in ``pooling_params``. Return a `Request` with these options.

        A client may store options there without a call of this package. Return None if ``pooling_params`` lacks
        options. The request's output then stays a raw tensor.
        """
        try:
            params = wire.read(pooling_params)
            if params is not None:
                self.binding.check_params(params)
                if params.mosaic is not None:
                    raise OptionError(
                        "mosaic needs several inputs, and this request has one; leave it out", param="mosaic"
                    )
        except MMOutError as error:
            raise as_client_error(error) from None
        wire.without_ours(pooling_params)
        return None if params is None else Request(params)

    def process_outputs(
        self, engine_core_outputs: list[EngineCoreOutput], *args: Any, **kwargs: Any
    ) -> OutputProcessorOutput:
        """Process outputs as vLLM does, after adding an empty tensor to each finished output without a tensor.

        vLLM would otherwise treat such an output as text and fail.
        """
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
        self, state: RoutedRequestState, request: Request, shell: MultimodalRequestOutput, buffer: torch.Tensor
    ) -> None:
        """Queue ``buffer``, an engine output, for decoding. Outputs of a request are decoded in their order.

        ``shell`` is the result object that gets the decoded output.

        The request counts as unfinished until its result is delivered.
        """
        request.due.append((shell, buffer))
        request.answer_bytes = buffer.nbytes
        if state.request_id not in self.pending:
            self._start_next(state, request)

    def _start_next(self, state: RequestState, request: Request) -> None:
        shell, buffer = request.due.popleft()
        decoding = Decoding(
            state,
            request,
            shell,
            buffer,
            binding=self.binding,
            observer=self.observer,
            deliver=self._deliver_from_thread,
        )
        try:
            with self.lock:
                self.pending.put(decoding)
                self.pool.queue(decoding)
        except BaseException:  # the system cannot start a thread
            self.pending.take_out(decoding)
            raise

    def _deliver_from_thread(self, decoding: Decoding, outcome: Outcome) -> None:
        loop = decoding.request.loop
        if loop is None:
            with self.lock:
                self._deliver(decoding, outcome)
                self.wakeup.notify_all()
            return
        try:
            loop.call_soon_threadsafe(self._deliver, decoding, outcome)
        except RuntimeError:  # the event loop was closed, so no caller waits for the result
            self.pending.take_out(decoding)

    def _deliver(self, decoding: Decoding, outcome: Outcome) -> None:
        if not self.pending.take_out(decoding):
            return
        if isinstance(outcome, BaseException):
            decoding.shell.error = outcome
        else:
            decoding.shell.outputs = outcome
        self._put(decoding.state, decoding.request, decoding.shell)
        if decoding.request.due:
            shell, _ = decoding.request.due[0]
            try:
                self._start_next(decoding.state, decoding.request)
            except Exception as error:  # noqa: BLE001 - the system cannot start a thread
                shell.error = error
                self._put(decoding.state, decoding.request, shell)

    def _put(self, state: RequestState, request: Request, shell: MultimodalRequestOutput) -> None:
        """Deliver ``shell``, a result object, to its request's queue or to the list that ``LLM`` fetches from."""
        if not shell.finished:
            request.reports.append(shell)
        if state.queue is not None:
            state.queue.put(shell)
        else:
            self.ready.append(shell)
        self.delivered()

    def abort_requests(self, request_ids: Iterable[str], internal: bool) -> list[str]:  # noqa: FBT001 - vLLM's signature
        """Abort requests as vLLM does, and cancel their pending decodes."""
        request_ids = list(request_ids)
        for request_id in request_ids:
            self._cancel_decodes(request_id, internal=internal)
        return super().abort_requests(request_ids, internal)

    def _cancel_decodes(self, request_id: str, *, internal: bool) -> None:
        with self.lock:
            for decoding in self.pending.for_request(request_id, internal=internal):
                self.pending.take_out(decoding)
                decoding.request.due.clear()
                decoding.cancel()
                decoding.shell.error = _ended(FinishReason.ABORT, None)
                decoding.shell.finished = True  # also of a report, since the result will not come
                if decoding.state.queue is not None:
                    decoding.state.queue.put(decoding.shell)
            self.wakeup.notify_all()

    def close(self) -> None:
        """End the decode threads. Pending requests fail with an AbortedError."""
        self.pool.close()


def _ended(reason: FinishReason, error: VLLMRequestError | None) -> MMOutError:
    if error is not None:
        return RequestError(f"the engine ended the request: {error.message}")
    if reason == FinishReason.ABORT:
        return AbortedError("the request was aborted before its result was delivered")
    return RequestError("the engine ended the request with an error; its log says why")
