"""Any layout, any codes, any answer: what is read is what was written, however it comes."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from token_layouts import (
    TEXT,
    in_steps,
    media_codes,
    places,
    read,
    says_its_length,
    streams,
    token_layouts,
    what_has_come,
)

from vllm_mmout.errors import TokenError
from vllm_mmout.wings.tokens.layouts import Medium, StreamParser, TokenLayout, parse


def end_is_told(layout):
    """Whether a stream that is cut anywhere says which codes it has of which codebook."""
    shared = layout.order == "sequential" and isinstance(layout.first, int) and layout.codebooks > 1
    return not shared or layout.grid is not None


@given(st.data())
def test_parse_after_build_is_the_identity(data):
    """The codes of one medium come back from the tokens that they were written as."""
    layout = data.draw(token_layouts())
    codes = data.draw(media_codes(layout))
    tokens = layout.build(codes, opened=layout.opened)
    grid = codes[0].shape if layout.modality == "image" else None
    assert parse(layout, tokens) == ([], [Medium(0, len(tokens), codes, complete=True, grid=grid)])


@given(st.data())
def test_build_puts_each_code_where_its_order_says(data):
    """Each token is the code, the padding, the row end or the marker that the definition of the order puts there."""
    layout = data.draw(token_layouts())
    codes = data.draw(media_codes(layout))
    medium = Medium(0, 0, codes, complete=True)
    tokens = layout.build(codes, opened=layout.opened)
    singles = {"pad": {layout.pad}, "row_end": {layout.row_end}, "begin": set(layout.begin), "end": set(layout.end)}
    for token, place in zip(tokens, places(layout, medium), strict=True):
        if isinstance(place, str):
            assert token in singles[place]
        else:
            book, number = place
            spans = [slot for slot in layout.slots if slot.codebook == book and slot.first <= token < slot.stop]
            assert codes[book].ravel()[number] in [token - slot.first for slot in spans]


@given(st.data())
def test_tokens_are_counted_before_they_come(data):
    """A medium takes as many tokens as the layout says, with its begin marker and without."""
    layout = data.draw(token_layouts())
    codes = data.draw(media_codes(layout))
    for opened in (False, True):
        if layout.modality == "image":
            counted = layout.tokens_of(*codes[0].shape, opened=opened)
        else:
            counted = layout.tokens_of_frames(codes[0].size // (layout.pattern or (0,)).count(0), opened=opened)
        assert counted == len(layout.build(codes, opened=opened))


@given(st.data())
def test_text_and_media_are_told_apart_in_any_steps(data):
    """However text and media take turns, and however the stream is parted, each token and each medium is found."""
    stream = data.draw(streams())
    assert read(stream.layout, in_steps(data.draw, stream.tokens)) == (stream.text, stream.media, None)
    text = [token for token, said in zip(stream.tokens, stream.text, strict=True) if said]
    assert parse(stream.layout, stream.tokens) == (text, stream.media)


@given(st.data())
def test_a_stream_that_ends_anywhere(data):
    """At every cut what has ended is delivered, and what has begun as far as it is whole, saying if that is all."""
    stream = data.draw(streams())
    layout = stream.layout
    assume(end_is_told(layout))
    for cut in range(len(stream.tokens) + 1):
        parser = StreamParser(layout)
        assert parser.feed(stream.tokens[:cut]) == stream.text[:cut]
        told = cut if says_its_length(layout) else cut - 1
        assert parser.take() == [medium for medium in stream.media if medium.stop <= told]
        rest = [medium for medium in stream.media if medium.stop > told and medium.start < cut]
        come = [what_has_come(stream, medium, cut) for medium in rest]
        assert parser.finish() == [medium for medium in come if medium is not None]
        assert parser.error is None
        assert parser.finish() == []


@given(st.data())
def test_an_unfit_token_that_ended_the_stream_is_no_error(data):
    """A stop token inside a medium is handed on, and leaves what there is of it."""
    stream = data.draw(streams())
    assume(end_is_told(stream.layout))
    cut = data.draw(st.integers(0, len(stream.tokens)))
    stop_token = data.draw(st.sampled_from(TEXT))
    parser = StreamParser(stream.layout)
    assert parser.feed([*stream.tokens[:cut], stop_token], stopped=True) == [*stream.text[:cut], True]
    assert parser.error is None
    assert parser.finish() == read(stream.layout, [stream.tokens[:cut]])[1]


@given(st.data())
def test_text_inside_a_medium(data):
    """Text in a medium that a grid or an end marker says is not over is an error, and no token after it is text.

    But where the layout has text inside.
    """
    stream = data.draw(streams())
    layout = stream.layout
    assume((layout.end or layout.grid) and not layout.text_inside)
    inside = [place for place, said in enumerate(stream.text) if not said]
    opens = {medium.start for medium in stream.media}
    place = data.draw(st.sampled_from([place for place in inside if place not in opens] or inside))
    assume(place not in opens)
    word = data.draw(st.sampled_from(TEXT))
    broken = [*stream.tokens[:place], word, *stream.tokens[place + 1 :]]
    parser = StreamParser(layout)
    assert parser.feed(broken) == [*stream.text[:place], *[False] * (len(broken) - place)]
    expected = "(a code|token|padding|the end of row)"
    with pytest.raises(TokenError, match=rf"^token {word} at position {place} of the output .* expected {expected}"):
        raise parser.error
    assert parser.finish() == read(layout, [stream.tokens[:place]])[1]


@given(st.data())
def test_an_end_marker_anywhere(data):
    """It ends its medium wherever it comes among the codes, of which there is as much as without it."""
    stream = data.draw(streams())
    layout = stream.layout
    assume(layout.end and end_is_told(layout))
    medium = data.draw(st.sampled_from(stream.media))
    begin = 0 if layout.opened and not medium.start else max(1, len(layout.begin))
    cut = data.draw(st.integers(medium.start + begin, medium.stop - len(layout.end)))
    text, found, error = read(layout, [[*stream.tokens[:cut], *layout.end, 1]])
    assert (text, error) == ([*stream.text[:cut], *[False] * len(layout.end), True], None)
    without = read(layout, [stream.tokens[:cut]])[1]
    assert [codes_of(one) for one in found] == [codes_of(one) for one in without]
    assert all(one.stop == cut + len(layout.end) for one in found if one.start == medium.start)


def codes_of(medium):
    """What there is of a medium, and where it begins."""
    return medium.start, [book.tolist() for book in medium.codes]


@given(st.data())
def test_text_alone(data):
    """An answer without a token of media is text, wherever the layout would have it begin."""
    layout = data.draw(token_layouts())
    words = data.draw(st.lists(st.sampled_from(TEXT)))
    assert read(layout, [words]) == ([True] * len(words), [], None)


@given(st.data())
def test_any_tokens(data):
    """No tokens make the parser raise; each is told, and how they are parted changes nothing."""
    layout = data.draw(token_layouts())
    some = st.sampled_from([*TEXT[:3], *sorted(layout.token_ids), *layout.begin * 3, *layout.end * 3])
    tokens = data.draw(st.lists(some, max_size=30))
    text, media, error = read(layout, [[token] for token in tokens])
    assert len(text) == len(tokens)
    assert (text, media, error) == read(layout, in_steps(data.draw, tokens))
    assert not any(said and token in layout.token_ids for token, said in zip(tokens, text, strict=True))
    for medium in media:
        assert layout.text_inside or not any(text[medium.start : medium.stop])
        assert medium.stop <= len(tokens)


@given(token_layouts())
def test_a_layout_from_json(layout):
    """A layout is the same when it is made of plain data with lists, and when it is pickled."""
    names = [name for name in vars(layout) if name in TokenLayout.__dataclass_fields__]
    plain = {name: getattr(layout, name) for name in names}
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}
    made = TokenLayout.from_mapping(plain)
    assert made == layout
    assert hash(made) == hash(layout)
    assert pickle.loads(pickle.dumps(layout)) == layout  # noqa: S301 - our own
