"""What of vLLM engines that generate media tokens rely on: rows of the hook table."""

from __future__ import annotations

from vllm_mmout.engine.hook import Hook

_OURS = "vLLM has an output registry of its own"

TOKEN_HOOKS: tuple[Hook, ...] = (
    Hook(
        "vllm.v1.engine.detokenizer",
        "IncrementalDetokenizer.update",
        ("new_token_ids", "stop_terminated"),
        "overridden on a request's own detokenizer, which learns what is text before it takes new tokens",
        "0.11",
        _OURS,
    ),
    Hook(
        "vllm.v1.engine.detokenizer",
        "BaseIncrementalDetokenizer.decode_next",
        ("next_token_id",),
        "overridden on a request's own detokenizer: media tokens add no text",
        "0.11",
        _OURS,
    ),
    Hook(
        "vllm.v1.engine.output_processor",
        "RequestState._new_completion_output",
        ("token_ids", "finish_reason", "stop_reason"),
        "overridden on a bound engine's answers, which get their media",
        "0.11",
        _OURS,
    ),
    Hook(
        "vllm.v1.engine.output_processor",
        "RequestState._new_request_output",
        ("external_req_id", "outputs", "finished"),
        "called for a request that fails in LLM",
        "0.11",
        _OURS,
    ),
    Hook(
        "vllm.v1.engine.output_processor",
        "OutputProcessor._finish_request",
        ("req_state",),
        "called for a request whose tokens do not fit",
        "0.11",
        _OURS,
    ),
    Hook(
        "vllm.v1.engine.output_processor",
        "RequestOutputCollector.put",
        ("output",),
        "overridden on a request's own queue: where deltas are merged, media are kept",
        "0.11",
        _OURS,
    ),
    Hook(
        "vllm.v1.engine.async_llm",
        "AsyncLLM.generate",
        ("prompt", "sampling_params", "request_id"),
        "overridden on a bound engine",
        "0.11",
        _OURS,
    ),
)
