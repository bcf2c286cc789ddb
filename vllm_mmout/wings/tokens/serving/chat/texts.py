"""What a client wrote into a chat: none of it may be read as the markers between which a model writes its media."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from vllm_mmout.serving.errors import ApiError

if TYPE_CHECKING:
    from vllm_mmout.wings.tokens.serving.service import Maker

_FIELDS: Final = ("messages", "tools", "documents", "chat_template_kwargs")
"""Fields of a chat whose texts go into its prompt."""


def check_texts(request: Any, makers: Iterable[Maker]) -> None:
    """Refuse a chat with a text that the model reads as a token of its media; blocks for some milliseconds.

    vLLM makes one prompt of the template and all texts, in which such a text would be the token itself.

    Raises:
        ApiError: 400 with the field that holds the text.

    """
    prompts = [maker.prompts for maker in makers if maker.prompts is not None]
    for field in _FIELDS:
        for text in _texts(getattr(request, field, None)):
            if any(prompt.media_in(text) for prompt in prompts):
                raise ApiError(
                    400,
                    f"{field} holds text that this model reads as a marker of its media, not as words; leave it out",
                    param=field,
                )


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in plain data, and what the texts of parts that stand beside each other make together."""
    if isinstance(value, str):
        yield value
    elif hasattr(value, "model_dump"):
        yield from _texts(value.model_dump())
    elif isinstance(value, dict):
        for name, part in [*value.items()]:
            if isinstance(part, Iterator):  # of pydantic's, which gives its values once
                value[name] = [*part]
        for name, part in value.items():
            if name not in ("image_url", "input_audio", "video_url", "audio_url"):  # files, which go into no prompt
                yield from _texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)
        yield "".join(part["text"] for part in value if isinstance(part, dict) and isinstance(part.get("text"), str))
