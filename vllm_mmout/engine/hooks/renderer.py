"""vLLM prompt renderer for engines that have output processors and no tokenizer. It refuses chat messages."""

from __future__ import annotations

from typing import Any, NoReturn

from vllm.renderers.base import BaseRenderer

from vllm_mmout.engine.hooks.compat import chat_template_error


class NoChat(BaseRenderer):
    """vLLM prompt renderer that refuses chat messages, for engines without a tokenizer."""

    def render_messages(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise vLLM's error for models that do not accept chat messages."""
        raise chat_template_error()("this model takes no chat messages: it has no tokenizer; send it an image")

    async def render_messages_async(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise vLLM's error for models that do not accept chat messages."""
        self.render_messages(*args, **kwargs)

    def validate_token_ids(self, *args: Any, **kwargs: Any) -> None:
        """Check token ids as vLLM does, unless tensors are the only inputs of the model.

        The prompt of such a model is a placeholder token. Without a tokenizer, vLLM since 0.33 compares the token with
        the model's vocabulary, which a TerraTorch folder lacks.
        """
        if not self.model_config.is_multimodal_raw_input_only_model:
            super().validate_token_ids(*args, **kwargs)
