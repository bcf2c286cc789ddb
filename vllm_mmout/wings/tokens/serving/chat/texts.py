"""Check that no text of a chat is read as one of the markers between which a model writes its media."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from vllm_mmout.serving.errors import ApiError

if TYPE_CHECKING:
    from vllm_mmout.wings.tokens.serving.service import Maker

_FIELDS: Final = ("messages", "tools", "documents", "chat_template_kwargs")
"""Fields of a chat whose texts go into its prompt."""
_FILES: Final = ("image_url", "input_audio", "video_url", "audio_url")
"""Keys of a message's parts that hold files."""


def check_texts(request: Any, makers: Iterable[Maker]) -> None:
    """Refuse a chat with a text that the model reads as a token of its media; blocks for some milliseconds.

    vLLM joins the template and all texts into one prompt, in which such a text would become the token itself.

    Raises:
        ApiError: 400 with the field that holds the text.

    """
    prompts = [maker.prompts for maker in makers if maker.prompts is not None]
    for field in _FIELDS:
        for text in _texts_of(field, getattr(request, field, None)):
            if any(prompt.media_in(text) for prompt in prompts):
                raise ApiError(
                    400,
                    f"{field} holds text that this model reads as a marker of its media, not as words; leave it out",
                    param=field,
                )


def _texts_of(field: str, value: Any) -> Iterator[str]:
    """Yield the texts of a field; of the parts of a message's content, files are left out, as they are no texts."""
    if field != "messages" or not isinstance(value, list | tuple):
        yield from _texts(value)
        return
    for message in value:
        plain = _plain(message)
        content = plain.pop("content", None) if isinstance(plain, dict) else None
        yield from _texts(plain)
        yield from _texts(
            [{name: value for name, value in part.items() if name not in _FILES} for part in map(_plain, content)]
            if isinstance(content, list | tuple) and all(isinstance(_plain(part), dict) for part in content)
            else content
        )


def _plain(value: Any) -> Any:
    """Return a copy of a dict, or of an object of pydantic as a dict; anything else as it is."""
    if hasattr(value, "model_dump"):
        return value.model_dump()
    if isinstance(value, dict):
        for name, part in [*value.items()]:
            if isinstance(part, Iterator):  # pydantic's, which can be read only once
                value[name] = [*part]
        return dict(value)
    return value


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in plain data, keys of dicts among them, and for each list of parts their texts joined."""
    value = _plain(value)
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, part in value.items():
            yield str(name)
            yield from _texts(part)
            if name == "arguments" and isinstance(part, str):  # of a call of a tool: vLLM reads this JSON
                with suppress(ValueError, RecursionError):
                    yield from _texts(json.loads(part))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)
        yield "".join(part["text"] for part in value if isinstance(part, dict) and isinstance(part.get("text"), str))
