"""The renderer of a bound engine without a tokenizer: it says so of chats, and has no vocabulary."""

from __future__ import annotations

from typing import Any, NoReturn

from vllm.renderers.base import BaseRenderer

from vllm_mmout.engine.hooks.compat import chat_template_error


class NoChat(BaseRenderer):
    """Of a bound engine whose model has no tokenizer."""

    def render_messages(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse chats."""
        raise chat_template_error()("this model takes no chat messages: it has no tokenizer; send it an image")

    async def render_messages_async(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse chats, as ``render_messages``."""
        self.render_messages(*args, **kwargs)

    def validate_token_ids(self, *args: Any, **kwargs: Any) -> None:
        """As vLLM's, but for models of raw inputs: the one token of their prompts stands for the request.

        vLLM from 0.33 on compares it with the model's vocabulary where there is no tokenizer, and a folder of
        TerraTorch's has none.
        """
        if not self.model_config.is_multimodal_raw_input_only_model:
            super().validate_token_ids(*args, **kwargs)
