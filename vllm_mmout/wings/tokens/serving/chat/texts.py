"""Refuse chats with text that the tokenizer would turn into a picture or sound token."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from vllm_mmout.serving.errors import ApiError

if TYPE_CHECKING:
    from vllm_mmout.wings.tokens.serving.service import Maker

_FIELDS: Final = ("messages", "tools", "documents", "chat_template_kwargs")
"""Fields of a chat request whose texts become part of the prompt."""
_FILES: Final = ("image_url", "input_audio", "video_url", "audio_url")
"""Keys under which a part of a chat message holds a file, such as a picture or sound."""


def check_texts(request: Any, makers: Iterable[Maker]) -> None:
    """Raise an ApiError if a tokenizer in ``makers`` would turn a chat's text into a picture or sound token.

    vLLM joins the template and all texts into one prompt, in which such a text would become the token itself. Blocks
    for some milliseconds.

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
    """Yield the texts of a request field, without the files in a message's content."""
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
    """Return a pydantic object as a dict, a dict as a copy, and any other value unchanged."""
    if hasattr(value, "model_dump"):
        return value.model_dump()
    if isinstance(value, dict):
        for name, part in [*value.items()]:
            if isinstance(part, Iterator):  # from pydantic, can be read only once
                value[name] = [*part]
        return dict(value)
    return value


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts in nested dicts and lists: the strings, and the keys of the dicts.

    For each list, the values of the key ``text`` in its dicts are also yielded as one joined text. For ``arguments`` of
    a tool call, the texts in the JSON are yielded too.
    """
    value = _plain(value)
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, part in value.items():
            yield str(name)
            yield from _texts(part)
            if name == "arguments" and isinstance(part, str):  # JSON of a tool call, which vLLM parses
                with suppress(ValueError, RecursionError):
                    yield from _texts(json.loads(part))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)
        yield "".join(part["text"] for part in value if isinstance(part, dict) and isinstance(part.get("text"), str))
