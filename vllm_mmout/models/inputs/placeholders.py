"""Find the placeholder tokens of each picture in a prompt that an input processor has expanded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vllm_mmout.errors import InputError

RANGES_KEY: Final = "multi_modal_placeholders"
"""Optional key in the result of a model's input processor. Its value is the position of each picture's tokens."""

_REMEDY: Final = (
    f'let the input processor return their places as "{RANGES_KEY}": {{"image": [{{"offset": ..., "length": ...}}]}}'
)
_TOKEN_NAMES: Final = ("image_token_id", "image_token_index")


@dataclass(frozen=True, slots=True)
class PicturePlaceholder:
    """Range of prompt tokens that belong to one picture."""

    offset: int
    """Index of the picture's first token in the prompt."""
    embedded: tuple[bool, ...]
    """One flag for each of the picture's tokens. True if the picture's embedding replaces the token."""

    @property
    def rows(self) -> int:
        """Number of rows of the picture's embedding, which is the number of tokens that it replaces."""
        return sum(self.embedded)


def image_token_of(config: Any) -> int | None:
    """Return the image token id in a model's configuration. Return None if the configuration lacks the id."""
    candidates = (getattr(config, name, None) for name in _TOKEN_NAMES)
    return next((token for token in candidates if isinstance(token, int)), None)


def stated_places(
    ranges: Sequence[Any], tokens: Sequence[int], count: int, image_token: int | None
) -> list[PicturePlaceholder]:
    """Check the token ``ranges`` that an input processor stated, one for each picture. Return them as placeholders.

    Args:
        ranges: one range for each picture, with ``offset`` and ``length``, as a dict or an object.
        tokens: the expanded prompt.
        count: the number of pictures.
        image_token: the token of pictures, None if nothing names it.

    Raises:
        InputError: the ranges do not fit the prompt or the pictures.

    """
    if len(ranges) != count:
        raise InputError(f'the input processor gave {len(ranges)} places as "{RANGES_KEY}" for {count} pictures')
    places: list[PicturePlaceholder] = []
    end = 0
    for stated in ranges:
        offset, length = _offset_and_length(stated)
        if offset < end or length < 1 or offset + length > len(tokens):
            raise InputError(
                f"the input processor gave a place of {length} tokens from {offset} on, in a prompt of {len(tokens)}"
                " tokens; places must follow one another inside the prompt"
            )
        end = offset + length
        places.append(PicturePlaceholder(offset, _embedded(tokens[offset:end], image_token)))
    _refuse_strays(tokens, places, image_token)
    return places


def derived_places(
    before: Sequence[int],
    after: Sequence[int],
    count: int,
    image_token: int | None,
    expand_one: Callable[[int, list[int]], list[int]],
) -> list[PicturePlaceholder]:
    """Find each picture's placeholder tokens by comparing the prompt before and after its expansion.

    Args:
        before: the prompt with one image token for each picture.
        after: the prompt that the input processor gave.
        count: the number of pictures.
        image_token: the token of pictures. None selects the only token that ``after`` has more often than ``before``.
        expand_one: function of the index of a picture and a prompt with one image token; returns the prompt that the
            input processor makes of them.

    Raises:
        InputError: the tokens cannot be assigned to pictures.

    """
    token = _grown_token(before, after) if image_token is None else image_token
    marks = [index for index, value in enumerate(before) if value == token]
    if count == 1:
        return [_only_place(before, after, token, len(marks))]
    if len(marks) != count:
        raise InputError(
            f"the prompt has {len(marks)} image tokens (id {token}) for {count} pictures; write one image token for"
            f" each picture, or {_REMEDY}"
        )
    head, tail = list(before[: marks[0]]), list(before[marks[-1] + 1 :])
    built, places = list(head), []
    for number, mark in enumerate(marks):
        alone = expand_one(number, [*head, token, *tail])
        end = len(alone) - len(tail)
        if alone[: len(head)] != head or alone[end:] != tail:
            break
        piece = alone[len(head) : end]
        places.append(_place(piece, token, len(built)))
        following = marks[number + 1] if number + 1 < count else len(before)
        built += [*piece, *before[mark + 1 : following]]
    if built != list(after):
        raise InputError(
            f"the input processor expands {count} pictures together in another way than each alone, so that their"
            f" tokens cannot be told apart; {_REMEDY}"
        )
    return places


def _only_place(before: Sequence[int], after: Sequence[int], token: int, count: int) -> PicturePlaceholder:
    """Return which tokens of a prompt with a single picture belong to the picture.

    These are the tokens from the first image token to the last. ``token`` is the image token, and ``count`` is the
    number of image tokens in ``before``.
    """
    if count > 1 and not (list(before) == list(after) and _is_run(after, token)):
        raise InputError(
            f"the prompt has {count} image tokens (id {token}) for one picture; write one image token for each picture"
        )
    indices = [index for index, value in enumerate(after) if value == token]
    if not indices:
        raise InputError(
            f"the prompt has no image token (id {token}) after the input processor, and comes with one picture; write"
            " an image token where the picture belongs"
        )
    return _place(after[indices[0] : indices[-1] + 1], token, indices[0])


def _place(tokens: Sequence[int], token: int, offset: int) -> PicturePlaceholder:
    """Return the placeholder of a picture whose ``tokens`` begin at index ``offset`` of the prompt."""
    embedded = tuple(value == token for value in tokens)
    if not any(embedded):
        raise InputError(
            f"the input processor made {len(tokens)} tokens for a picture, and none of them is the image token"
            f" (id {token}); {_REMEDY}"
        )
    return PicturePlaceholder(offset, embedded)


def _is_run(tokens: Sequence[int], token: int) -> bool:
    """Return whether all occurrences of ``token`` form a run, without other tokens between them."""
    indices = [index for index, value in enumerate(tokens) if value == token]
    return indices[-1] - indices[0] + 1 == len(indices)


def _grown_token(before: Sequence[int], after: Sequence[int]) -> int:
    """Return the image token: the only token that occurs more often in the prompt ``after`` than in ``before``.

    ``after`` is the prompt that the input processor made of ``before``. Raise InputError unless exactly one token
    occurs more often in ``after``.
    """
    grown = Counter(after) - Counter(before)
    if len(grown) == 1:
        return next(iter(grown))
    tokens = f"tokens {', '.join(map(str, sorted(grown)))}" if grown else "no token"
    raise InputError(
        f"the image token is unknown: the input processor added {tokens}; name the token in config.json as"
        f' "{_TOKEN_NAMES[0]}", or {_REMEDY}'
    )


def _offset_and_length(stated: Any) -> tuple[int, int]:
    try:
        if isinstance(stated, Mapping):
            return int(stated["offset"]), int(stated["length"])
        return int(stated.offset), int(stated.length)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f'a place in "{RANGES_KEY}" must have the numbers offset and length, the input processor gave {stated!r}'
        ) from error


def _embedded(tokens: Sequence[int], image_token: int | None) -> tuple[bool, ...]:
    """Return a flag for each token of a picture, True if the picture's embedding replaces the token.

    The flag is True for image tokens. If ``tokens`` has none, its tokens must be equal, and all flags are True.
    """
    if image_token in tokens:
        return tuple(value == image_token for value in tokens)
    if len(set(tokens)) == 1:
        return (True,) * len(tokens)
    raise InputError(
        f"the input processor gave a place with the tokens {', '.join(map(str, sorted(set(tokens))))}, and the image"
        f' token is unknown; name it in config.json as "{_TOKEN_NAMES[0]}"'
    )


def _refuse_strays(tokens: Sequence[int], places: Sequence[PicturePlaceholder], image_token: int | None) -> None:
    """Raise InputError if the prompt has image tokens outside ``places``. The model would read them as text."""
    inside = {index for place in places for index in range(place.offset, place.offset + len(place.embedded))}
    strays = [index for index, token in enumerate(tokens) if token == image_token and index not in inside]
    if strays:
        raise InputError(
            f"{len(strays)} image tokens (id {image_token}) of the prompt lie outside the places of its {len(places)}"
            f" pictures, the first one at {strays[0]}; write one image token for each picture"
        )
