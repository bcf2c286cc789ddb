"""The output processor of a bound engine that generates tokens: media leave the text, and wait for their decoder.

Deltas pass at once; the end of an answer is held back until its media are there. Nothing may raise out of
``process_outputs``: one exception there ends the handler task, every request of every user, and the server.

No request takes a credit: what waits for a decoder is a few kilobytes of codes, and text must not wait for pictures.
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
from vllm_mmout.engine.request.decode import ticket
from vllm_mmout.engine.request.holding import HoldingOutputProcessor
from vllm_mmout.wings.tokens.engine.batcher import MediaBatcher
from vllm_mmout.wings.tokens.engine.binding import TokenBinding
from vllm_mmout.wings.tokens.engine.outputs import MediaCollector, MultimodalCompletionOutput, route
from vllm_mmout.wings.tokens.engine.request import PLAIN, TokenRequest
from vllm_mmout.wings.tokens.engine.stream import MediaStream, MediaTokenFilter
from vllm_mmout.wings.tokens.guided.admission import GUIDED, guide


@dataclass(slots=True)
class Answer:
    """What the state of one answer carries beside vLLM's own."""

    stream: MediaStream
    router: TokenOutputProcessor
    ending: Callable[[], Any] | None = None
    """Makes the last output, once the media are there; set when the engine is done with the request."""
    objects: list[Any] | None = None
    failed: bool = False


class TokenRequestState(RequestState):
    """The state of one answer of a bound engine."""

    mmout: Answer

    def make_request_output(
        self,
        new_token_ids: list[int],
        pooling_output: Any,
        finish_reason: FinishReason | None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """As vLLM's; the last output of an answer with media is delivered when these are decoded."""
        answer = self.mmout
        vllms = super().make_request_output

        def ending() -> Any:
            return vllms(new_token_ids, pooling_output, finish_reason, *args, **kwargs)

        with answer.router.lock:  # in ``LLM`` answers of one request end in several threads
            if answer.failed:
                return None
            if finish_reason is not None:
                answer.stream.finish(self.detokenizer.output_token_ids if self.detokenizer else [])
            else:
                answer.stream.advance()
            if answer.stream.error is not None:
                return answer.router.fail(self, answer.stream.error)
            if finish_reason is None or not answer.stream.jobs:
                return ending()
            return answer.router.hold(self, ending)

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
    """vLLM's output processor, on an engine whose model generates media tokens."""

    binding: TokenBinding
    pending: dict[str, TokenRequestState]
    """Answers that the engine is done with and that wait for their media, by internal id."""
    batchers: dict[str, MediaBatcher]
    """By name of the processor."""
    observer: Observer = SILENT
    """Hears of requests that fail."""

    def setup(self, binding: TokenBinding) -> None:
        """Make the routing's own state; called once, when the engine is bound."""
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
        """As vLLM's, and route the request's tokens.

        A request whose input streams in, and one that asks for ``output="none"``, stay as vLLM has them.
        """
        goes_on = request.request_id in self.request_states
        self._guide(request)
        super().add_request(request, prompt, parent_req, request_index, queue)
        if goes_on or request.resumable or request.sampling_params is None:
            return
        asked = ticket(TokenRequest) or TokenRequest(PLAIN)
        state = self.request_states[request.request_id]
        if asked.params.output == "none":
            return
        name = self.binding.pick(asked.params)
        layout = self.binding.processors[name].layout
        if state.detokenizer is None:
            return
        if not asked.decode:
            route(state.detokenizer, MediaTokenFilter(layout.token_ids))
            return
        loop = None if queue is None else asyncio.get_running_loop()
        batcher = self.batchers[name]
        settled = partial(self._settled, request.request_id, loop)
        growing = self.binding.growing(asked.params, batcher, settled)
        stream = MediaStream(layout, request.prompt_token_ids or (), asked.params, batcher, settled, growing=growing)
        route(state.detokenizer, stream)
        rebase(state, TokenRequestState)
        if isinstance(state, TokenRequestState):
            state.mmout = Answer(stream, self)
        if queue is not None:
            rebase(queue, MediaCollector)

    def _guide(self, request: EngineCoreRequest) -> None:
        """Let the engine keep to the layout where a request asks for whole media."""
        asked = ticket(TokenRequest)
        if asked is not None and asked.params.output in GUIDED:
            layout = self.binding.processors[self.binding.pick(asked.params)].layout
            guide(request, asked.params, layout, self.binding.max_model_len)

    def process_outputs(
        self, engine_core_outputs: list[EngineCoreOutput], *args: Any, **kwargs: Any
    ) -> OutputProcessorOutput:
        """As vLLM's; requests whose tokens do not fit the model's layout end here, and in the engine."""
        done = super().process_outputs(engine_core_outputs, *args, **kwargs)
        for output in engine_core_outputs:
            state = self.request_states.get(output.request_id)
            if isinstance(state, TokenRequestState) and state.mmout.failed:
                done.reqs_to_abort.extend(self._end_failed(state))
        return done

    def hold(self, state: TokenRequestState, ending: Callable[[], Any]) -> Any:
        """Keep the end of an answer until its media are decoded; gives it at once where they are. Under the lock.

        vLLM counts a request when the engine is done with it: one with ``n`` whose last answer waits here is missing in
        its histograms of ``n`` and of the longest answer.
        """
        state.mmout.ending = ending
        if not state.mmout.stream.decoded:
            self.pending[state.request_id] = state
            return None
        return self._last_output(state)

    def fail(self, state: TokenRequestState, error: Exception) -> Any:
        """What a failed request gets: an exception in its queue, or in ``LLM`` a result that says it."""
        parent = state.parent_req
        for one in self._family(state):
            one.mmout.failed = True
            one.mmout.stream.cancel()
            self.pending.pop(one.request_id, None)  # its media, cancelled, would never call
        if parent is not None:
            self.parent_requests.pop(parent.request_id, None)
        if state.queue is not None:
            return error
        # Its class stays vLLM's until `LLM.generate` is through: vLLM's loop reads ``outputs`` to count tokens.
        shell: Any = state._new_request_output(  # noqa: SLF001 - of our own state
            state.external_req_id,
            [state._new_completion_output([], None, None)],  # noqa: SLF001
            finished=True,
        )
        shell.error = error
        return shell

    def _last_output(self, state: TokenRequestState) -> Any:
        """The end of an answer whose media have been decoded."""
        answer = state.mmout
        try:
            answer.objects = answer.stream.objects()
        except Exception as error:  # noqa: BLE001 - it must not leave process_outputs
            return self.fail(state, error)
        output = answer.ending() if answer.ending is not None else None
        answer.ending = None
        parent = state.parent_req
        if parent is not None and not parent.child_requests:
            self.parent_requests.pop(parent.request_id, None)
        return output

    def _settled(self, request_id: str, loop: asyncio.AbstractEventLoop | None) -> None:
        """A medium of an answer has been decoded; called in any thread."""
        if loop is None:
            with self.lock:
                self._deliver(request_id)
                self.wakeup.notify_all()
            return
        try:
            loop.call_soon_threadsafe(self._deliver, request_id)
        except RuntimeError:  # the loop was closed: nobody waits any more
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
        """As vLLM's; what is whole of an aborted answer is decoded, unless there is nobody to get it.

        ``generate`` itself calls by internal ids, when its caller has gone away.
        """
        request_ids = list(request_ids)
        with self.lock:
            for state in self._called(request_ids, internal=internal):
                if internal or state.queue is None:
                    state.mmout.failed = True
                    state.mmout.stream.cancel()
                    self.pending.pop(state.request_id, None)
            self.wakeup.notify_all()
        return super().abort_requests(request_ids, internal)

    def _called(self, request_ids: list[str], *, internal: bool) -> list[TokenRequestState]:
        """States of internal ids, those of parents among them, or of a caller's own."""
        wanted = set(request_ids)
        states = [*self.request_states.values(), *self.pending.values()]  # the decode thread asks too: in one step each
        ours = (state for state in states if isinstance(state, TokenRequestState))
        return [state for state in ours if wanted & _names(state, internal=internal)]

    def _family(self, state: TokenRequestState) -> list[TokenRequestState]:
        """An answer and the others of its request."""
        if state.parent_req is None:
            return [state]
        return self._called([state.parent_req.request_id], internal=True)

    def _end_failed(self, state: TokenRequestState) -> list[str]:
        """Forget a failed request; gives the ids by which the engine knows it."""
        ended = []
        with self.lock:
            for one in self._family(state):
                if one.request_id in self.request_states:
                    self._finish_request(one)
                    self.lora_states.request_finished(one.request_id, one.lora_name)
                    ended.append(one.request_id)
        return ended

    def close(self) -> None:
        """End the decoders' threads; what is pending fails."""
        for batcher in self.batchers.values():
            batcher.close()


def _names(state: RequestState, *, internal: bool) -> set[str]:
    """The ids by which an abort may call a state."""
    known = (state,) if state.parent_req is None else (state, state.parent_req)
    return {one.request_id if internal else one.external_req_id for one in known}
