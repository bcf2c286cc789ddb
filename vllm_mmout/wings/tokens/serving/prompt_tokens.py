"""Encode prompts to token ids, so that a client's text can never become a special token."""

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
class SpelledToken:
    """Token that the tokenizer recognises by its spelling in a text, such as a special token."""

    id: int
    lstrip: bool = False
    """Whether encoding the token also removes the whitespace before it."""
    rstrip: bool = False
    """Whether encoding the token also removes the whitespace after it."""


class TextTokenizer:
    """Thread-safe wrapper of a tokenizer, which can also encode texts without recognising special tokens in them.

    A tokenizer of the library tokenizers is copied, because it must not be used while its settings change.
    """

    def __init__(self, tokenizer: Any, media: AbstractSet[int]) -> None:
        self._tokenizer = tokenizer
        self._lock = Lock()
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._whole = None if backend is None else _copy(backend.to_str())
        unknown = getattr(tokenizer, "unk_token_id", None)  # for text outside the vocabulary, so not a marker
        self._markers = _markers(tokenizer, media)
        self.guarded = frozenset({*tokenizer.all_special_ids, *media, *self._markers.values()} - {unknown})
        """Token ids that a client's text must not produce: special tokens, markers, and media tokens."""

    def whole(self, text: str, *, special: bool) -> list[int]:
        """Encode a whole text. Special tokens in the text, such as ``<s>``, are recognised.

        ``special`` also adds the tokens that the tokenizer puts around each text, such as BOS.
        """
        if self._whole is not None:
            return list(self._whole.encode(text, add_special_tokens=special).ids)
        with self._lock:
            return list(self._tokenizer.encode(text, add_special_tokens=special))

    def plain(self, text: str) -> list[int]:
        """Encode a text as plain text. Special tokens in the text, such as ``<s>``, are not recognised.

        Some tokenizers recognise special tokens nevertheless, so the caller must check the result.
        """
        if not text:
            return []
        if self._whole is not None:
            return list(self._plain.encode(text, add_special_tokens=False).ids)
        with self._lock:
            try:
                return list(self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))
            except TypeError:  # tokenizers without this argument never recognise special tokens
                return list(self._tokenizer.encode(text, add_special_tokens=False))

    @cached_property
    def around(self) -> tuple[list[int], list[int]]:
        """Return the ids that the tokenizer adds before and after each text, such as BOS and EOS."""
        full, bare = self.whole(_PROBE, special=True), self.whole(_PROBE, special=False)
        for start in range(len(full) - len(bare) + 1):
            if full[start : start + len(bare)] == bare:
                return full[:start], full[start + len(bare) :]
        return [], []

    def begins_itself(self, text: str) -> bool:
        """Return whether a text already begins with the tokens that the tokenizer would add, such as BOS."""
        before = self.around[0]
        return bool(before) and self.whole(text, special=False)[: len(before)] == before

    def added_in(self, text: str) -> dict[str, SpelledToken]:
        """Return the special tokens that occur in a text, as a dict from spelling to token."""
        added_tokens = getattr(self._tokenizer, "added_tokens_decoder", {})
        spelled = {}
        for content, token in self._markers.items():
            if token in self.guarded and content in text:
                added_token = added_tokens.get(token)
                spelled[content] = SpelledToken(
                    token, getattr(added_token, "lstrip", False), getattr(added_token, "rstrip", False)
                )
        return spelled

    @cached_property
    def _plain(self) -> Any:
        """Return a copy of the tokenizer that does not recognise special tokens in a text."""
        described = json.loads(self._whole.to_str())  # type: ignore[union-attr]  # called only if there is one
        for token in described["added_tokens"]:
            token["special"] = token["special"] or token["id"] in self.guarded
        tokenizer = _copy(json.dumps(described))
        tokenizer.encode_special_tokens = True  # encodes them as plain letters
        return tokenizer


def _markers(tokenizer: Any, media: AbstractSet[int]) -> dict[str, int]:
    """Return a tokenizer's special tokens and other markers, as a dict from spelling to token id.

    Not all markers are declared as special. Added tokens that are not special count as words if they have only letters,
    digits and whitespace.
    """
    added_tokens = getattr(tokenizer, "added_tokens_decoder", {})
    special = {
        *tokenizer.all_special_ids,
        *media,
        *(token for token, added_token in added_tokens.items() if added_token.special),
    }
    return {
        content: token
        for content, token in tokenizer.get_added_vocab().items()
        if content and (token in special or not all(letter.isalnum() or letter.isspace() for letter in content))
    }


def _copy(described: str) -> Any:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(described)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


_SAMPLE_VALUE = "1"
"""Sample text for the placeholders of a prompt template. Encoding the filled template shows the template's own special
tokens."""


class PromptTokens:
    """Encoder of prompts from a template and a client's values. Special tokens in these values are not recognised.

    If the client's text does not spell out a special token, the whole prompt is tokenized at once, as the model's own
    code would do. Otherwise the template's special tokens are put between texts that are tokenized without special
    tokens. This is the exception, because it can split words at the edges of a placeholder otherwise than in training.
    """

    def __init__(self, tokenizer: Any, template: PromptTemplate, layout: TokenLayout) -> None:
        self._tokenizer = TextTokenizer(tokenizer, layout.token_ids)
        self._template = template
        self._layout = layout
        first = template.parts[0]
        # A template that begins with this token itself must not get it twice.
        self._adds = not (isinstance(first, str) and self._tokenizer.begins_itself(first))
        self._added = self._tokenizer.added_in("".join(text for text, _ in template.filled_pieces({})))
        self._template_tokens: dict[frozenset[str], list[int]] = {}
        """Cache of the prompt template's own special tokens, by the set of placeholders that a client fills. Each set
        has its own entry, because the default texts of other placeholders may add special tokens."""

    def encode(self, values: Mapping[str, str], param: str) -> list[int]:
        """Encode the prompt with the client's ``values`` in its placeholders. Errors name the request field ``param``.

        Blocks for some milliseconds.
        """
        pieces = self._template.filled_pieces(values)
        ids = self._together(pieces)
        expected = self._template_tokens_of(frozenset(values) & self._template.names)
        if self._guarded(ids) != expected:
            ids = self._encode_pieces(pieces)
        if self._guarded(ids) != expected:
            raise ApiError(
                400,
                f"{param} holds text that this model reads as a marker of its own, not as words; leave it out",
                param=param,
            )
        return [*ids, *self._missing_marker(ids)]

    def media_in(self, text: str) -> list[int]:
        """Return the picture or sound tokens that the tokenizer recognises in a text.

        The call blocks for some milliseconds.
        """
        return [token for token in self._tokenizer.whole(text, special=False) if token in self._layout.token_ids]

    def _missing_marker(self, ids: list[int]) -> Sequence[int]:
        """Return the begin marker of a picture or sound that the prompt ``ids`` lacks. Return () if it lacks none.

        No marker is missing if the prompt ends with the begin marker or inside a sound, such as a voice to continue.
        """
        begin, end = list(self._layout.begin), self._layout.end
        if not self._layout.opened or not begin or self._layout.ends_with_begin(ids):
            return ()
        starts = [at for at in range(len(ids)) if ids[at : at + len(begin)] == begin]
        is_open = bool(starts) and (end[0] not in ids[starts[-1] :] if end else self._layout.text_inside)
        return () if is_open else begin

    def _template_tokens_of(self, names: frozenset[str]) -> list[int]:
        """Return the special tokens of the prompt template when the client fills only the placeholders ``names``.

        ``names`` are the placeholders for which the client gives a value. The others get their default text.
        """
        if names not in self._template_tokens:
            ids = self._together(self._template.filled_pieces(dict.fromkeys(names, _SAMPLE_VALUE)))
            self._template_tokens[names] = self._guarded(ids)
        return self._template_tokens[names]

    def _together(self, pieces: Sequence[tuple[str, bool]]) -> list[int]:
        return self._tokenizer.whole("".join(text for text, _ in pieces), special=self._adds)

    def _guarded(self, ids: Sequence[int]) -> list[int]:
        """Return the tokens among ``ids`` that a client's text must not produce, in order."""
        return [token for token in ids if token in self._tokenizer.guarded]

    def _encode_pieces(self, pieces: Sequence[tuple[str, bool]]) -> list[int]:
        """Encode the pieces of a prompt to token ids. Special tokens in the client's pieces become ordinary text."""
        before, after = self._tokenizer.around if self._adds else ([], [])
        ids = list(before)
        text = ""
        for token in self._split_pieces(pieces):
            if isinstance(token, str):
                text += token
                continue
            ids += self._tokenizer.plain(text.rstrip() if token.lstrip else text)
            ids.append(token.id)
            text = ""
        return ids + self._tokenizer.plain(text) + list(after)

    def _split_pieces(self, pieces: Sequence[tuple[str, bool]]) -> list[str | SpelledToken]:
        """Split a prompt's pieces at special tokens, except the pieces that the client wrote."""
        pattern = re.compile("|".join(map(re.escape, sorted(self._added, key=len, reverse=True))) or r"(?!)")
        runs: list[str | SpelledToken] = []
        stripped = False
        for text, from_client in pieces:
            end = 0
            for match in () if from_client else pattern.finditer(text):
                runs.append(_stripped(text[end : match.start()], stripped=stripped))
                runs.append(self._added[match[0]])
                stripped, end = self._added[match[0]].rstrip, match.end()
            runs.append(_stripped(text[end:], stripped=stripped))
            stripped = stripped and not runs[-1]
        return runs


def _stripped(text: str, *, stripped: bool) -> str:
    return text.lstrip() if stripped else text
