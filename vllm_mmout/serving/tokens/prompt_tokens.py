"""PromptTokens: the token ids of a prompt, in which what a client wrote never becomes a marker."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.tokens.tokenizers import Added, TextTokenizer

if TYPE_CHECKING:
    from vllm_mmout.processors.prompt_template import PromptTemplate
    from vllm_mmout.tokens import TokenLayout

_PLAIN = "1"
"""Stands for what a client gives where only the template counts."""


class PromptTokens:
    """Makes token ids of a template and what a client gives.

    Where nothing that a client wrote reads as a special token, the ids are those of the whole text, as the model's own
    code would make them. Where it does, the template's special tokens are put between texts that have none.

    Args:
        tokenizer: vLLM's, of the model.
        template: around the client's text.
        layout: whose tokens no client may write; ``opened``: the prompt ends inside a medium, whose begin marker is put
            there where the template has none.

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
        """The ids of a prompt; blocks for some milliseconds.

        Args:
            values: what goes in for the template's places.
            param: the field that an error is about.

        Raises:
            ApiError: the text would become a marker however it is read (400).

        """
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
