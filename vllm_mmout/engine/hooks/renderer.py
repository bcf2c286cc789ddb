"""The renderer of a bound engine without a tokenizer: it says so, instead of failing at each start and each chat."""

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
