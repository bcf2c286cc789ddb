"""List the functions and classes of vLLM that token-generating models need.

When vLLM starts, vllm_mmout checks that each `Hook` in the list exists.
"""

from __future__ import annotations

from vllm_mmout.engine.hooks.hook import Hook
from vllm_mmout.private_names import Contact

_ANSWERS = "put media into vLLM's answers"
_GUIDED = "keep answers to the layout of their media"
_DETOKENIZER = "vllm.v1.engine.detokenizer"
_OUTPUT_PROCESSOR = "vllm.v1.engine.output_processor"


def _row(module: str, name: str, parameters: tuple[str, ...], why: str) -> Hook:
    return Hook(module, name, parameters, why, "0.11", "vLLM has an output registry of its own")


TOKEN_HOOKS: tuple[Hook | Contact, ...] = (
    _row(
        _DETOKENIZER,
        "IncrementalDetokenizer.update",
        ("new_token_ids", "stop_terminated"),
        "overridden on a request's own detokenizer, to learn which of the new tokens are text",
    ),
    _row(
        _DETOKENIZER,
        "BaseIncrementalDetokenizer.decode_next",
        ("next_token_id",),
        "overridden on a request's own detokenizer: media tokens add no text",
    ),
    _row(
        _OUTPUT_PROCESSOR,
        "RequestState._new_completion_output",
        ("token_ids", "finish_reason", "stop_reason"),
        "overridden on a bound engine's answers, to add their media",
    ),
    _row(
        _OUTPUT_PROCESSOR,
        "RequestState._new_request_output",
        ("external_req_id", "outputs", "finished"),
        "called to make the result of a request that fails in LLM",
    ),
    _row(
        _OUTPUT_PROCESSOR,
        "OutputProcessor._finish_request",
        ("req_state",),
        "called to end a request whose tokens do not fit the layout, and overridden to count an answer that is held",
    ),
    _row(
        _OUTPUT_PROCESSOR,
        "RequestOutputCollector.put",
        ("output",),
        "overridden on a request's own queue, to keep media when deltas are merged",
    ),
    _row(
        "vllm.v1.engine.async_llm",
        "AsyncLLM.generate",
        ("prompt", "sampling_params", "request_id"),
        "overridden on a bound engine",
    ),
    Contact("vllm.config", ("ModelConfig.get_diff_sampling_param", "VllmConfig"), "sample as a model's folder says"),
    Contact(
        "vllm.entrypoints.openai.models.serving", ("OpenAIServingModels",), "answer for the models that are served"
    ),
    Contact(
        "vllm.entrypoints.openai.chat_completion.serving",
        (
            "OpenAIServingChat.create_chat_completion",
            "OpenAIServingChat.create_error_response",
            "OpenAIServingChat.engine_client",
        ),
        "put media into the answers of chats",
    ),
    Contact("vllm.v1.engine", ("EngineCoreOutput", "EngineCoreRequest"), _ANSWERS),
    Contact("vllm.v1.engine.parallel_sampling", ("ParentRequest",), _ANSWERS),
    Contact("vllm", ("LLM.generate", "LLM.chat", "LLM.wait_for_completion"), _ANSWERS),
    Contact("vllm.exceptions", ("VLLMValidationError",), _ANSWERS),
    Contact("vllm.outputs", ("CompletionOutput", "RequestOutput"), _ANSWERS),
    Contact("vllm.sampling_params", ("RequestOutputKind", "SamplingParams", "SamplingParams.extra_args"), _ANSWERS),
    Contact("vllm.v1.engine.async_llm", ("AsyncLLM",), _ANSWERS),
    Contact("vllm.sampling_params", ("SamplingParams.structured_outputs", "SamplingParams.eos_token_id"), _GUIDED),
    Contact("vllm.config.model", ("ModelConfig.logits_processors",), _GUIDED),
    Contact("vllm.v1.sample.logits_processor", ("LogitsProcessor",), _GUIDED),
    Contact("vllm.v1.sample.logits_processor.builtin", ("process_dict_updates",), _GUIDED),
    Contact(_DETOKENIZER, ("IncrementalDetokenizer.output_token_ids",), _ANSWERS),
    Contact("vllm.v1.engine.exceptions", ("EngineGenerateError",), _ANSWERS),
    Contact(
        _OUTPUT_PROCESSOR,
        (
            "OutputProcessor.lora_states",
            "OutputProcessor.parent_requests",
            "OutputProcessorOutput",
            "RequestOutputCollector.output",
            "RequestState.detokenizer",
            "RequestState.parent_req",
        ),
        _ANSWERS,
    ),
)
