"""Places of pictures in prompts that an author's input processor has expanded."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from vllm_mmout.errors import InputError
from vllm_mmout.models.inputs.placeholders import PicturePlaceholder, derived_places, image_token_of, stated_places

T = 3
"""The image token."""
ROWS = [T, T, 8, T, T, 9]
"""A picture of two rows with separators, as Pixtral's."""


def replaced(pieces):
    """Return an input processor that replaces the image token of each picture by its piece."""

    def process(prompt, numbers):
        left = [pieces[number] for number in numbers]
        return [new for token in prompt for new in (left.pop(0) if token == T and left else [token])]

    return process


def derived(before, pieces, image_token=T, process=None):
    process = process or replaced(pieces)
    after = process(before, range(len(pieces)))
    return derived_places(before, after, len(pieces), image_token, lambda number, prompt: process(prompt, [number]))


def place(offset, *tokens):
    return PicturePlaceholder(offset, tuple(token == T for token in tokens))


@pytest.mark.parametrize(
    ("before", "pieces", "places"),
    [
        ([1, T, 5], [[T] * 4], [place(1, T, T, T, T)]),
        ([1, T, 5], [ROWS], [place(1, T, T, 8, T, T)]),
        ([T, T], [[T] * 2, [T] * 3], [place(0, T, T), place(2, T, T, T)]),
        ([1, T, 8, T, 8], [ROWS, [T]], [place(1, *ROWS), place(8, T)]),
        ([T, 5, T, T], [[T], ROWS, [7, T]], [place(0, T), place(2, *ROWS), place(8, 7, T)]),
    ],
)
def test_each_picture_has_the_tokens_of_its_own(before, pieces, places):
    """Places are found for one picture, separators, adjacent pictures and pictures of different token counts."""
    assert derived(before, pieces) == places


def test_tokens_without_a_mark_and_tokens_expanded_by_the_user_are_of_the_one_picture():
    """Some models put the picture in front, and some prompts hold all image tokens already."""
    assert derived([1, 5], [[]], process=lambda prompt, numbers: [T, T, *prompt]) == [place(0, T, T)]
    assert derived([1, T, T, T], [[T]], process=lambda prompt, numbers: prompt) == [place(1, T, T, T)]


def test_without_a_name_the_token_that_was_added_is_the_image_token():
    """If several tokens were added, or none, the request is refused."""
    assert derived([1, T, 5], [[T] * 3], image_token=None) == [place(1, T, T, T)]
    with pytest.raises(InputError, match=r"added tokens 3, 8, 9; name the token in config.json"):
        derived([1, T, 5], [ROWS], image_token=None)
    with pytest.raises(InputError, match="added no token"):
        derived([1, T, 5], [[T]], image_token=None)


@pytest.mark.parametrize(
    ("before", "pieces", "says"),
    [
        ([1, T], [[T], [T]], "has 1 image tokens .* for 2 pictures"),
        ([T, 5, T], [[T] * 2], "has 2 image tokens .* for one picture"),
        ([1, 5], [[T]], "has no image token .* after the input processor"),
        ([1, T, T], [[T], [8]], "none of them is the image token"),
    ],
)
def test_a_prompt_that_does_not_fit_its_pictures_is_refused(before, pieces, says):
    """A prompt needs one image token for each picture, and at least one after expansion."""
    with pytest.raises(InputError, match=says):
        derived(before, pieces)


@pytest.mark.parametrize(
    "process",
    [
        lambda prompt, numbers: [new for token in prompt for new in [token] * (len(numbers) if token == T else 1)],
        lambda prompt, numbers: [*([0] if len(numbers) == 1 else []), *prompt],
    ],
)
def test_a_processor_that_treats_pictures_together_must_state_their_places(process):
    """Pictures that take other tokens together than alone cannot be told apart by comparison."""
    with pytest.raises(InputError, match=r'cannot be told apart; .* "multi_modal_placeholders"'):
        derived([T, T], [[], []], process=process)


def test_stated_places_are_taken():
    """Places may be dicts or objects. Tokens around the image tokens get no row."""
    ranges = [{"offset": 1, "length": 3}, SimpleNamespace(offset=4, length=2)]
    assert stated_places(ranges, [1, 8, T, 9, T, T, 5], 2, T) == [place(1, 8, T, 9), place(4, T, T)]
    assert stated_places(ranges[1:], [1, 8, 8, 9, 6, 6], 1, None) == [PicturePlaceholder(4, (True, True))]


@pytest.mark.parametrize(
    ("ranges", "count", "says"),
    [
        ([(1, 2)], 2, "gave 1 places .* for 2 pictures"),
        ([(1, 2), (2, 2)], 2, "a place of 2 tokens from 2 on, in a prompt of 6 tokens"),
        ([(4, 3)], 1, "a place of 3 tokens from 4 on"),
        ([(0, 0)], 1, "a place of 0 tokens"),
        ([(1, 2)], 1, r"1 image tokens \(id 3\) of the prompt lie outside .* the first one at 5"),
        ([(3, 2)], 1, "a place with the tokens 4, 5, and the image token is unknown"),
        ([None], 1, "must have the numbers offset and length, .* gave None"),
    ],
)
def test_stated_places_that_do_not_fit_are_refused(ranges, count, says):
    """Refused are a wrong number, an overlap, a place outside the prompt and image tokens outside all places."""
    stated = [one and {"offset": one[0], "length": one[1]} for one in ranges]
    with pytest.raises(InputError, match=says):
        stated_places(stated, [1, T, T, 4, 5, T], count, T)


def test_the_image_token_is_what_the_configuration_names():
    """The token is read under both of transformers' names."""
    assert image_token_of(SimpleNamespace(image_token_index=7)) == 7
    assert image_token_of(SimpleNamespace(image_token_id=8, image_token_index=7)) == 8
    assert image_token_of(SimpleNamespace(image_token_id=None)) is None
