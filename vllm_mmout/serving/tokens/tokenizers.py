"""TextTokenizer: a model's tokenizer, as it is and with special tokens read as plain text."""

from __future__ import annotations

import json
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any

_PROBE = "a"


@dataclass(frozen=True, slots=True)
class Added:
    """A token that is found in a text as it is written."""

    id: int
    lstrip: bool = False
    """Whether it takes the blanks before it."""
    rstrip: bool = False
    """Whether it takes the blanks after it."""


class TextTokenizer:
    """Callable from several threads.

    Args:
        tokenizer: vLLM's. One of the library tokenizers is copied, as it may not be used while its settings change.
        media: token ids that stand for media.

    """

    def __init__(self, tokenizer: Any, media: AbstractSet[int]) -> None:
        self._tokenizer = tokenizer
        self._lock = Lock()
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._whole = None if backend is None else _copy(backend.to_str())
        unknown = getattr(tokenizer, "unk_token_id", None)  # what no vocabulary has, and no marker
        self._markers = _markers(tokenizer, media)
        self.guarded = frozenset({*tokenizer.all_special_ids, *media, *self._markers.values()} - {unknown})
        """Tokens that are the model's own: special ones, others that are no words, and those of media."""

    def whole(self, text: str, *, special: bool) -> list[int]:
        """The ids of a text, special tokens in it being what they are.

        Args:
            text: any.
            special: whether the tokens that the model has around each text are added.

        """
        if self._whole is not None:
            return list(self._whole.encode(text, add_special_tokens=special).ids)
        with self._lock:
            return list(self._tokenizer.encode(text, add_special_tokens=special))

    def plain(self, text: str) -> list[int]:
        """The ids of a text in which the model's own tokens are letters, as far as the tokenizer can."""
        if not text:
            return []
        if self._whole is not None:
            return list(self._plain.encode(text, add_special_tokens=False).ids)
        with self._lock:
            try:
                return list(self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))
            except TypeError:  # those that know no such argument never read special tokens out of a text
                return list(self._tokenizer.encode(text, add_special_tokens=False))

    @cached_property
    def around(self) -> tuple[list[int], list[int]]:
        """The ids that are put before and after each text."""
        full, bare = self.whole(_PROBE, special=True), self.whole(_PROBE, special=False)
        for start in range(len(full) - len(bare) + 1):
            if full[start : start + len(bare)] == bare:
                return full[:start], full[start + len(bare) :]
        return [], []

    def begins_itself(self, text: str) -> bool:
        """Whether a text has the ids that are put before each text."""
        before = self.around[0]
        return bool(before) and self.whole(text, special=False)[: len(before)] == before

    def added_in(self, text: str) -> dict[str, Added]:
        """The model's own tokens that are written in a text, by their content."""
        known = getattr(self._tokenizer, "added_tokens_decoder", {})
        found = {}
        for content, token in self._markers.items():
            if token in self.guarded and content in text:
                about = known.get(token)
                found[content] = Added(token, getattr(about, "lstrip", False), getattr(about, "rstrip", False))
        return found

    @cached_property
    def _plain(self) -> Any:
        """The tokenizer that finds none of the model's own tokens in a text; all others keep their ids."""
        described = json.loads(self._whole.to_str())  # type: ignore[union-attr]  # asked for where there is one
        for token in described["added_tokens"]:
            token["special"] = token["special"] or token["id"] in self.guarded
        made = _copy(json.dumps(described))
        made.encode_special_tokens = True  # as the letters that they are written with
        return made


def _markers(tokenizer: Any, media: AbstractSet[int]) -> dict[str, int]:
    """The tokens beside the vocabulary that are no words, by their content.

    Not all that are meant as markers are said to be special. What a vocabulary has of letters, digits and blanks beside
    its own is text.
    """
    known = getattr(tokenizer, "added_tokens_decoder", {})
    special = {*tokenizer.all_special_ids, *media, *(token for token, about in known.items() if about.special)}
    return {
        content: token
        for content, token in tokenizer.get_added_vocab().items()
        if content and (token in special or not all(letter.isalnum() or letter.isspace() for letter in content))
    }


def _copy(described: str) -> Any:
    from tokenizers import Tokenizer

    made = Tokenizer.from_str(described)
    made.no_truncation()
    made.no_padding()
    return made
