"""Process the engine's outputs for models that generate pictures or sounds as tokens.

Text is passed on at once. The last output of an answer is held until its media are decoded. ``process_outputs`` must
not raise: an exception there would end the handler task, all requests of all users, and the server.

The number of requests that wait for a decoder is not limited: the codes of a request take only a few kilobytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from vllm.outputs import CompletionOutput
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.engine.output_processor import OutputProcessorOutput, RequestOutputCollector, RequestState
from vllm.v1.engine.parallel_sampling import ParentRequest

from vllm_mmout.engine.binding import rebase
from vllm_mmout.engine.observer import SILENT, Observer
from vllm_mmout.engine.request.holding_output_processor import HoldingOutputProcessor
from vllm_mmout.engine.request.request import ticket
from vllm_mmout.wings.tokens.engine.batcher import MediaBatcher
from vllm_mmout.wings.tokens.engine.binding import TokenBinding
from vllm_mmout.wings.tokens.engine.outputs import MediaCollector, MultimodalCompletionOutput, route
from vllm_mmout.wings.tokens.engine.request import PLAIN, TokenRequest
from vllm_mmout.wings.tokens.engine.stream import MediaStream, MediaTokenFilter
from vllm_mmout.wings.tokens.guided.admission import GUIDED, guide


@dataclass(slots=True)
class Answer:
    """Decoding state of one answer: its token stream, its decoded pictures and sounds, and its last output."""

    stream: MediaStream
    router: TokenOutputProcessor
    build_output: Callable[[], Any] | None = None
    """Function that builds the last output of the answer. It is set when the engine has finished the answer, and called
    when all pictures and sounds of the answer are decoded."""
    objects: list[Any] | None = None
    failed: bool = False


class TokenRequestState(RequestState):
    """vLLM's ``RequestState`` of one answer. It also tracks the decoding of the answer's pictures and sounds."""

    mmout: Answer

    def make_request_output(
        self,
        new_token_ids: list[int],
        pooling_output: Any,
        finish_reason: FinishReason | None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Build an output, as vLLM does. Hold back the last output until all pictures and sounds are decoded."""
        answer = self.mmout
        vllms = super().make_request_output

        def build_output() -> Any:
            return vllms(new_token_ids, pooling_output, finish_reason, *args, **kwargs)

        with answer.router.lock:  # with ``LLM``, answers of one request end in several threads
            if answer.failed:
                return None
            if finish_reason is not None:
                answer.stream.finish(self.detokenizer.output_token_ids if self.detokenizer else [])
            else:
                answer.stream.advance()
            if answer.stream.error is not None:
                return answer.router.fail(self, answer.stream.error)
            if finish_reason is None or not answer.stream.jobs:
                return build_output()
            return answer.router.hold(self, build_output)

    def _new_completion_output(
        self, token_ids: list[int], finish_reason: FinishReason | None, stop_reason: int | str | None
    ) -> CompletionOutput:
        output: Any = super()._new_completion_output(token_ids, finish_reason, stop_reason)
        rebase(output, MultimodalCompletionOutput)
        output.multimodal = self.mmout.objects or []
        growing = self.mmout.stream.growing
        output.updates = [] if growing is None else growing.take()
        return output  # type: ignore[no-any-return]


class TokenOutputProcessor(HoldingOutputProcessor):
    """vLLM's ``OutputProcessor``, which also decodes the pictures and sounds in the tokens of answers."""

    binding: TokenBinding
    pending: dict[str, TokenRequestState]
    """Answers that the engine has finished and whose media are still being decoded, by internal request id."""
    batchers: dict[str, MediaBatcher]
    """Decoder threads, one for each output processor. The key is the output processor's name."""
    observer: Observer = SILENT
    """Observer of the engine, such as metrics, which is notified of failed requests."""

    def setup(self, binding: TokenBinding) -> None:
        """Initialize a vLLM ``OutputProcessor`` object after its class was changed to this class."""
        self.binding = binding
        self.pending = {}
        timeout = binding.settings.decode_timeout_s
        self.batchers = {name: MediaBatcher(processor, timeout) for name, processor in binding.processors.items()}
        self.begin_holding()

    def add_request(
        self,
        request: EngineCoreRequest,
        prompt: str | None,
        parent_req: ParentRequest | None = None,
        request_index: int = 0,
        queue: RequestOutputCollector | None = None,
    ) -> None:
        """Add a request, as vLLM does, and prepare to decode the pictures and sounds in its answer.

        Requests whose input is streamed, and requests with ``output="none"``, are left to vLLM.
        """
        is_continued = request.request_id in self.request_states
        self._guide(request)
        super().add_request(request, prompt, parent_req, request_index, queue)
        if is_continued or request.resumable or request.sampling_params is None:
            return
        token_request = ticket(TokenRequest) or TokenRequest(PLAIN)
        state = self.request_states[request.request_id]
        if token_request.params.output == "none":
            return
        name = self.binding.pick(token_request.params)
        layout = self.binding.processors[name].layout
        if state.detokenizer is None:
            return
        if not token_request.decode:
            route(state.detokenizer, MediaTokenFilter(layout.token_ids))
            return
        loop = None if queue is None else asyncio.get_running_loop()
        batcher = self.batchers[name]
        settled = partial(self._settled, request.request_id, loop)
        growing = self.binding.growing(token_request.params, batcher, settled)
        stream = MediaStream(
            layout, request.prompt_token_ids or (), token_request.params, batcher, settled, growing=growing
        )
        route(state.detokenizer, stream)
        rebase(state, TokenRequestState)
        if isinstance(state, TokenRequestState):
            state.mmout = Answer(stream, self)
        if queue is not None:
            rebase(queue, MediaCollector)

    def _guide(self, request: EngineCoreRequest) -> None:
        """Attach token rules (`Guide`) to a request whose answer may contain only complete pictures or sounds."""
        token_request = ticket(TokenRequest)
        if token_request is not None and token_request.params.output in GUIDED:
            layout = self.binding.processors[self.binding.pick(token_request.params)].layout
            guide(request, token_request.params, layout, self.binding.max_model_len)

    def process_outputs(
        self, engine_core_outputs: list[EngineCoreOutput], *args: Any, **kwargs: Any
    ) -> OutputProcessorOutput:
        """Process engine outputs, as vLLM does. Then end failed requests, such as requests with misplaced tokens."""
        processed = super().process_outputs(engine_core_outputs, *args, **kwargs)
        for output in engine_core_outputs:
            state = self.request_states.get(output.request_id)
            if isinstance(state, TokenRequestState) and state.mmout.failed:
                processed.reqs_to_abort.extend(self._end_failed(state))
        return processed

    def hold(self, state: TokenRequestState, build_output: Callable[[], Any]) -> Any:
        """Hold back an answer's last output if its media are still being decoded. Otherwise, return the output.

        The caller must hold the lock. vLLM counts a request when the engine has finished it. A request with ``n``
        answers whose last answer waits here is missing in vLLM's histograms of ``n`` and of the longest answer.
        """
        state.mmout.build_output = build_output
        if not state.mmout.stream.decoded:
            self.pending[state.request_id] = state
            return None
        return self._last_output(state)

    def _finish_request(self, req_state: RequestState) -> None:
        """Finish an answer, as vLLM does. Keep the parent request registered until the answer's media are decoded."""
        super()._finish_request(req_state)
        parent = req_state.parent_req
        if parent is not None and req_state.request_id in self.pending:
            parent.child_requests.add(req_state.request_id)
            self.parent_requests[parent.request_id] = parent

    def fail(self, state: TokenRequestState, error: Exception) -> Any:
        """Cancel all answers of a failed request. Return an output that reports ``error`` to the caller.

        For ``AsyncLLM``, the output is the exception. For ``LLM``, it is a result with the attribute ``error``.
        """
        parent = state.parent_req
        for sibling in self._states_of_request(state):
            sibling.mmout.failed = True
            sibling.mmout.stream.cancel()
            self.pending.pop(sibling.request_id, None)  # its media are cancelled, so no callback comes
        if parent is not None:
            self.parent_requests.pop(parent.request_id, None)
        if state.queue is not None:
            return error
        # Its class stays vLLM's until `LLM.generate` returns, as vLLM's loop reads ``outputs`` to count tokens.
        shell: Any = state._new_request_output(  # noqa: SLF001 - of our own state
            state.external_req_id,
            [state._new_completion_output([], None, None)],  # noqa: SLF001
            finished=True,
        )
        shell.error = error
        return shell

    def _last_output(self, state: TokenRequestState) -> Any:
        """Return the last output of an answer, with its decoded pictures and sounds."""
        answer = state.mmout
        try:
            answer.objects = answer.stream.objects()
        except Exception as error:  # noqa: BLE001 - no error may escape from process_outputs
            return self.fail(state, error)
        output = answer.build_output() if answer.build_output is not None else None
        answer.build_output = None
        parent = state.parent_req
        if parent is not None and not parent.child_requests:
            self.parent_requests.pop(parent.request_id, None)
        return output

    def _settled(self, request_id: str, loop: asyncio.AbstractEventLoop | None) -> None:
        """Deliver an answer if its media are all decoded. Called when a medium is decoded, in any thread."""
        if loop is None:
            with self.lock:
                self._deliver(request_id)
                self.wakeup.notify_all()
            return
        try:
            loop.call_soon_threadsafe(self._deliver, request_id)
        except RuntimeError:  # the loop is closed, so nobody waits any more
            self.pending.pop(request_id, None)

    def _deliver(self, request_id: str) -> None:
        state = self.pending.get(request_id)
        if state is None or not state.mmout.stream.decoded:
            return
        del self.pending[request_id]
        output = self._last_output(state)
        if output is not None and state.queue is not None:
            state.queue.put(output)
        elif output is not None:
            self.ready.append(output)
        self.delivered()

    def abort_requests(self, request_ids: Iterable[str], internal: bool) -> list[str]:  # noqa: FBT001 - vLLM's signature
        """Abort requests. If a client still waits, the pictures and sounds generated before the abort are decoded.

        Nobody waits with ``LLM``, or if ``internal`` is set: ``generate`` then aborts because its caller has gone.
        """
        request_ids = list(request_ids)
        with self.lock:
            for state in self._states_with_ids(request_ids, internal=internal):
                if internal or state.queue is None:
                    state.mmout.failed = True
                    state.mmout.stream.cancel()
                    self.pending.pop(state.request_id, None)
            self.wakeup.notify_all()
        return super().abort_requests(request_ids, internal)

    def _states_with_ids(self, request_ids: list[str], *, internal: bool) -> list[TokenRequestState]:
        """Return the states of all answers whose own id, or whose request's id, is in ``request_ids``."""
        id_set = set(request_ids)
        states = [*self.request_states.values(), *self.pending.values()]  # a copy, as the decode thread calls this
        token_states = (state for state in states if isinstance(state, TokenRequestState))
        return [state for state in token_states if id_set & _ids_of(state, internal=internal)]

    def _states_of_request(self, state: TokenRequestState) -> list[TokenRequestState]:
        """Return the states of all answers to one request. ``state`` may be the state of any of these answers."""
        if state.parent_req is None:
            return [state]
        return self._states_with_ids([state.parent_req.request_id], internal=True)

    def _end_failed(self, state: TokenRequestState) -> list[str]:
        """Remove a failed request from vLLM's records. Return the ids of its answers, which the engine must abort."""
        ended = []
        with self.lock:
            for sibling in self._states_of_request(state):
                if sibling.request_id in self.request_states:
                    self._finish_request(sibling)
                    self.lora_states.request_finished(sibling.request_id, sibling.lora_name)
                    ended.append(sibling.request_id)
        return ended

    def close(self) -> None:
        """End the decoder threads. Answers that still wait for a picture or sound fail."""
        for batcher in self.batchers.values():
            batcher.close()


def _ids_of(state: RequestState, *, internal: bool) -> set[str]:
    """Return the ids that can be used to abort an answer: the answer's own id, and the id of its request."""
    states = (state,) if state.parent_req is None else (state, state.parent_req)
    return {owner.request_id if internal else owner.external_req_id for owner in states}
