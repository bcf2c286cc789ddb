"""PromptTokens: the token ids of a prompt, in which what a client wrote never becomes a marker."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any

from vllm_mmout.serving.errors import ApiError
from vllm_mmout.wings.tokens.layouts import TokenLayout
from vllm_mmout.wings.tokens.processors.prompt_template import PromptTemplate

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
    """Callable from several threads: a library tokenizer is copied, as it may not be used while its settings change."""

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
        """The ids of a text with its special tokens; ``special``: and with those that are put around each text."""
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


_PLAIN = "1"
"""Stands for what a client gives where only the template counts."""


class PromptTokens:
    """Makes token ids of a template and what a client gives.

    Where nothing that a client wrote reads as a special token, the ids are those of the whole text, as the model's own
    code would make them. Where it does, the template's special tokens are put between texts that have none. Not always
    so, as words at the border of a place would be cut as in no text of the training.
    """

    def __init__(self, tokenizer: Any, template: PromptTemplate, layout: TokenLayout) -> None:
        self._tokenizer = TextTokenizer(tokenizer, layout.token_ids)
        self._template = template
        self._layout = layout
        first = template.parts[0]
        # A template that begins with the token itself would have it twice.
        self._adds = not (isinstance(first, str) and self._tokenizer.begins_itself(first))
        self._added = self._tokenizer.added_in("".join(text for text, _ in template.filled({})))
        self._expected: dict[frozenset[str], list[int]] = {}
        """Of the places that a client fills, the template's own tokens in what is left."""

    def encode(self, values: Mapping[str, str], param: str) -> list[int]:
        """The ids of a prompt with these values in its places; blocks for some milliseconds. Errors name ``param``."""
        pieces = self._template.filled(values)
        ids = self._together(pieces)
        expected = self._expected_of(frozenset(values) & self._template.names)
        if self._guarded(ids) != expected:
            ids = self._apart(pieces)
        if self._guarded(ids) != expected:
            raise ApiError(
                400,
                f"{param} holds text that this model reads as a marker of its own, not as words; leave it out",
                param=param,
            )
        return [*ids, *self._opening(ids)]

    def media_in(self, text: str) -> list[int]:
        """Return the media tokens that the tokenizer reads in a text; blocks for some milliseconds."""
        return [token for token in self._tokenizer.whole(text, special=False) if token in self._layout.token_ids]

    def _opening(self, ids: list[int]) -> Sequence[int]:
        """What is missing at the end of a prompt, so that the answer begins inside a medium.

        Nothing where it ends with the begin marker, or with a medium that has begun, as a voice to go on with.
        """
        begin, end = list(self._layout.begin), self._layout.end
        if not self._layout.opened or not begin or self._layout.ends_with_begin(ids):
            return ()
        starts = [at for at in range(len(ids)) if ids[at : at + len(begin)] == begin]
        goes_on = bool(starts) and (end[0] not in ids[starts[-1] :] if end else self._layout.text_inside)
        return () if goes_on else begin

    def _expected_of(self, names: frozenset[str]) -> list[int]:
        """The ids that no client may write, of a prompt whose places of these names a client fills."""
        if names not in self._expected:
            ids = self._together(self._template.filled(dict.fromkeys(names, _PLAIN)))
            self._expected[names] = self._guarded(ids)
        return self._expected[names]

    def _together(self, pieces: Sequence[tuple[str, bool]]) -> list[int]:
        return self._tokenizer.whole("".join(text for text, _ in pieces), special=self._adds)

    def _guarded(self, ids: Sequence[int]) -> list[int]:
        """The ids that no client may write, in their order."""
        return [token for token in ids if token in self._tokenizer.guarded]

    def _apart(self, pieces: Sequence[tuple[str, bool]]) -> list[int]:
        """The ids of a prompt whose special tokens are the template's alone."""
        before, after = self._tokenizer.around if self._adds else ([], [])
        ids = list(before)
        text = ""
        for token in self._runs(pieces):
            if isinstance(token, str):
                text += token
                continue
            ids += self._tokenizer.plain(text.rstrip() if token.lstrip else text)
            ids.append(token.id)
            text = ""
        return ids + self._tokenizer.plain(text) + list(after)

    def _runs(self, pieces: Sequence[tuple[str, bool]]) -> list[str | Added]:
        """Texts, and the special tokens that the template has between them."""
        found = re.compile("|".join(map(re.escape, sorted(self._added, key=len, reverse=True))) or r"(?!)")
        runs: list[str | Added] = []
        stripped = False
        for text, outside in pieces:
            end = 0
            for match in () if outside else found.finditer(text):
                runs.append(_left(text[end : match.start()], stripped=stripped))
                runs.append(self._added[match[0]])
                stripped, end = self._added[match[0]].rstrip, match.end()
            runs.append(_left(text[end:], stripped=stripped))
            stripped = stripped and not runs[-1]
        return runs


def _left(text: str, *, stripped: bool) -> str:
    """Text behind a token that takes the blanks after it."""
    return text.lstrip() if stripped else text
