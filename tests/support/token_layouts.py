"""Strategies of token layouts, of media and of streams; what must be found in a stream is said here a second time."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from vllm_mmout.wings.tokens.layouts import Medium, StreamParser, TokenLayout

TEXT = [*range(50), *range(7000, 7010)]
"""Token ids that no layout of these strategies uses."""

_FIRST_CODE = 100
_MARKERS = range(5000, 5040)

integers = st.integers


@st.composite
def token_layouts(draw: st.DrawFn, modality: str | None = None) -> TokenLayout:
    """Layouts of every kind: orders, markers, rows, grids, patterns, ids shared or of each slot's own."""
    modality = draw(st.sampled_from(["image", "audio"])) if modality is None else modality
    books = draw(integers(1, 3))
    orders = ["flattened", "interleaved", "sequential"] + ["delayed"] * (books > 1)
    order = draw(st.sampled_from(orders))
    fields = {"modality": modality, "codebooks": books, "order": order, "opened": draw(st.booleans())}
    if order == "interleaved":
        fields["pattern"] = draw(st.none() | patterns(books, modality))
    markers = draw(st.permutations(_MARKERS))
    if order == "delayed":
        fields["pad"] = markers.pop()
    if modality == "image":
        rows = order in {"flattened", "interleaved"} and draw(st.booleans())
        fields["row_end"] = markers.pop() if rows else None
        if not rows or draw(st.booleans()):
            fields["grid"] = (draw(integers(1, 4)), draw(integers(1, 4)))
    fields["begin"] = tuple(markers.pop() for _ in range(draw(integers(0, 2))))
    fields["end"] = tuple(markers.pop() for _ in range(draw(integers(0, 2))))
    fields["text_inside"] = modality == "audio" and bool(fields["end"]) and draw(st.booleans())
    apart = draw(st.booleans())
    equal = order == "sequential" and not apart and fields.get("grid") is None
    size = draw(integers(1, 9) if equal else integers(1, 9) | st.tuples(*[integers(1, 9)] * books))
    fields.update(size=size, first=draw(firsts(fields.get("pattern") or range(books), size, apart=apart)))
    return TokenLayout(**fields)


@st.composite
def patterns(draw: st.DrawFn, books: int, modality: str) -> tuple[int, ...]:
    """The codebooks of a frame's slots: each at least once, of an image once."""
    more = [] if modality == "image" else draw(st.lists(integers(0, books - 1), max_size=4))
    return tuple(draw(st.permutations([*range(books), *more])))


@st.composite
def firsts(draw: st.DrawFn, pattern: tuple[int, ...], size: int | tuple[int, ...], *, apart: bool) -> object:
    """One id for all slots, or one a slot, in any order and with gaps."""
    if not apart:
        return draw(integers(_FIRST_CODE, _FIRST_CODE + 50))
    token, found = _FIRST_CODE, {}
    for slot in draw(st.permutations(range(len(pattern)))):
        token += draw(integers(0, 3))
        found[slot] = token
        token += size if isinstance(size, int) else size[pattern[slot]]
    return tuple(found[slot] for slot in range(len(pattern)))


def sizes_of(layout: TokenLayout) -> tuple[int, ...]:
    """Codes of each codebook."""
    return (layout.size,) * layout.codebooks if isinstance(layout.size, int) else layout.size


def pattern_of(layout: TokenLayout) -> tuple[int, ...]:
    """The codebook of each slot."""
    return layout.pattern or tuple(range(layout.codebooks))


@st.composite
def media_codes(draw: st.DrawFn, layout: TokenLayout) -> tuple[np.ndarray, ...]:
    """The codes of one medium that a layout can write."""
    pattern = pattern_of(layout)
    if layout.modality == "image":
        shapes = [layout.grid or (draw(integers(1, 4)), draw(integers(1, 4)))] * layout.codebooks
    else:
        frames = draw(integers(1, 5))
        shapes = [(frames * pattern.count(book),) for book in range(layout.codebooks)]
    return tuple(
        np.array(draw(st.lists(integers(0, size - 1), min_size=(n := int(np.prod(shape))), max_size=n))).reshape(shape)
        for shape, size in zip(shapes, sizes_of(layout), strict=True)
    )


@dataclass
class Stream:
    """The tokens of an answer, and what is to be found in them."""

    layout: TokenLayout
    tokens: list[int] = field(default_factory=list)
    text: list[bool] = field(default_factory=list)
    media: list[Medium] = field(default_factory=list)

    def write(self, words: list[int]) -> None:
        """Go on with text."""
        self.tokens += words
        self.text += [True] * len(words)

    def show(self, codes: tuple[np.ndarray, ...], inside: list[list[int]] | None = None) -> None:
        """Go on with a medium; before its codes, from the first on, so many words."""
        opened = self.layout.opened and not self.tokens
        tokens = self.layout.build(codes, opened=opened)
        markers, inside = 0 if opened else len(self.layout.begin), inside or []
        if not opened and not markers:  # it begins with its first code
            self.write(inside[0] if inside else [])
            inside = [[], *inside[1:]]
        start = len(self.tokens)
        self._take(tokens[:markers])
        for at, words in enumerate(inside, markers):
            self.write(words)
            self._take(tokens[at : at + 1])
        self._take(tokens[markers + len(inside) :])
        grid = codes[0].shape if self.layout.modality == "image" else None
        self.media.append(Medium(start, len(self.tokens), codes, complete=True, grid=grid))

    def _take(self, tokens: list[int]) -> None:
        self.tokens += tokens
        self.text += [False] * len(tokens)


@st.composite
def streams(draw: st.DrawFn, layout: TokenLayout | None = None) -> Stream:
    """Answers in which text and media take turns in any way that can be read again."""
    stream = Stream(draw(token_layouts()) if layout is None else layout)
    words = st.lists(st.sampled_from(TEXT), max_size=3)
    apart = bool(stream.layout.begin) or says_its_length(stream.layout)
    for index in range(draw(integers(1, 3))):
        if index or not stream.layout.opened:
            stream.write(draw(words if apart or not index else words.filter(bool)))
        codes = draw(media_codes(stream.layout))
        most = sum(book.size for book in codes) if stream.layout.text_inside else 0
        stream.show(codes, draw(st.lists(words, max_size=most)))
    stream.write(draw(words))
    return stream


def says_its_length(layout: TokenLayout) -> bool:
    """Whether a medium tells where it ends before the next token comes."""
    own = layout.order == "sequential" and not isinstance(layout.first, int) and layout.codebooks > 1
    return bool(layout.end) or layout.grid is not None or layout.order == "delayed" or own


def read(layout: TokenLayout, steps: list[list[int]]) -> tuple[list[bool], list[Medium], str | None]:
    """What a parser makes of tokens that come in steps: which are text, the media, and the error."""
    parser = StreamParser(layout)
    text, media = [], []
    for step in steps:
        text += parser.feed(step)
        media += parser.take()
    media += parser.finish()
    return text, media, None if parser.error is None else str(parser.error)


def in_steps(draw: st.DrawFn, tokens: list[int]) -> list[list[int]]:
    """Tokens parted anywhere, some steps empty."""
    cuts = sorted(draw(st.lists(integers(0, len(tokens)), max_size=6)))
    return [tokens[a:b] for a, b in zip([0, *cuts], [*cuts, len(tokens)], strict=True)]


def places(layout: TokenLayout, medium: Medium) -> list[tuple[int, int] | str]:
    """What each token of a medium is: the (codebook, number) of a code, or the name of what it is instead.

    Written after the definition of the orders, one token at a time.
    """
    pattern = pattern_of(layout)
    books = range(layout.codebooks)
    frames = medium.codes[0].size // pattern.count(0)
    inside: list[tuple[int, int] | str] = []
    if layout.order == "delayed":
        for step in range(frames + layout.codebooks - 1):
            inside += [(book, step - book) if 0 <= step - book < frames else "pad" for book in books]
    elif layout.order == "sequential":
        inside = [(book, frame) for book in books for frame in range(frames)]
    else:
        for frame in range(frames):
            for slot, book in enumerate(pattern):
                inside.append((book, frame * pattern.count(book) + pattern[:slot].count(book)))
            if layout.row_end is not None and (frame + 1) % medium.codes[0].shape[1] == 0:
                inside.append("row_end")
    opened = layout.opened and medium.start == 0
    return ["begin"] * (0 if opened else len(layout.begin)) + inside + ["end"] * len(layout.end)


def whole_frames(layout: TokenLayout, medium: Medium, come: int) -> int:
    """Frames of which all codes are among the first tokens of a medium."""
    pattern = pattern_of(layout)
    there = {place for place in places(layout, medium)[:come] if not isinstance(place, str)}
    frames = medium.codes[0].size // pattern.count(0)
    for frame in range(frames):
        for book in range(layout.codebooks):
            rate = pattern.count(book)
            if any((book, frame * rate + index) not in there for index in range(rate)):
                return frame
    return frames


def is_whole(layout: TokenLayout, medium: Medium, come: int) -> bool:
    """Whether a medium of which so many tokens have come, and no more, is complete."""
    known = places(layout, medium)
    codes = [place for place in known if not isinstance(place, str)]
    there = [place for place in known[:come] if not isinstance(place, str)]
    if layout.grid is not None:
        return len(there) == len(codes)
    if layout.order == "delayed" or (layout.order == "sequential" and says_its_length(layout) and not layout.end):
        return "end" in known[:come] or all(place == "end" for place in known[come:])
    if layout.end:
        own = layout.order == "sequential" and not isinstance(layout.first, int) and layout.codebooks > 1
        return "end" in known[:come] or (own and len(there) == len(codes))
    if layout.modality == "image":
        unit = medium.codes[0].shape[1] * layout.codebooks
        return "row_end" in known[:come] and len(there) % unit == 0
    return bool(there) and len(there) % len(pattern_of(layout)) == 0


def what_has_come(stream: Stream, medium: Medium, cut: int) -> Medium | None:
    """What is found of a medium that has begun when the stream ends before a token; None: nothing yet."""
    layout = stream.layout
    own = [at for at in range(medium.start, min(cut, medium.stop)) if not stream.text[at]]
    come, stop = len(own), max(own, default=medium.start) + 1
    frames = whole_frames(layout, medium, come)
    grid = layout.grid
    if layout.modality == "audio":
        pattern = pattern_of(layout)
        codes = tuple(book[: frames * pattern.count(index)] for index, book in enumerate(medium.codes))
    else:
        known = layout.grid is not None or "row_end" in places(layout, medium)[:come]
        rows = frames // medium.codes[0].shape[1] if known else 0
        codes = tuple(book[:rows] for book in medium.codes)
    if codes[0].size == 0:
        return None
    complete = is_whole(layout, medium, come)
    if complete and layout.modality == "image":
        grid = codes[0].shape
    return Medium(medium.start, stop, codes, complete=complete, grid=grid)


def medium(start, stop, *codes, complete=True, grid=None):
    """What is to be found: the tokens that it takes, and its codes."""
    return Medium(start, stop, tuple(np.array(book) for book in codes), complete=complete, grid=grid)


def one_by_one(layout, tokens):
    """The same as `read`, a token a step."""
    return read(layout, [[token] for token in tokens])
