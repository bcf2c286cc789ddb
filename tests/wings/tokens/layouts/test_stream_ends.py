"""Where media end: before text, before the next one, at the end of the stream, at a stop token."""

from __future__ import annotations

import pytest
from known_layouts import EMU3, LLASA, ORPHEUS
from token_layouts import medium, one_by_one, read

from vllm_mmout.errors import TokenError
from vllm_mmout.wings.tokens.layouts import StreamParser, TokenLayout, parse

EOL, EOF, EOI, EOS = 151846, 151847, 151853, 151850  # Emu3's
ROWS = TokenLayout(modality="image", first=100, size=10, row_end=7, begin=(5,))
PAIR = TokenLayout(modality="image", first=(100, 200), size=10, codebooks=2, grid=(1, 2), begin=(4, 5), end=(6, 7))
SOUND = TokenLayout(modality="audio", first=100, size=10)


def emu3(*codes):
    return [151854 + code for code in codes]


class TestRuns:
    def test_ends_before_text(self):
        """A sound without markers is what lies between words, and is delivered with the word after it."""
        parser = StreamParser(SOUND)
        assert parser.feed([1, 100, 109]) == [True, False, False]
        assert parser.take() == []
        assert parser.feed([2, 101]) == [True, False]
        assert parser.take() == [medium(1, 3, [0, 9])]
        assert parser.finish() == [medium(4, 5, [1])]

    def test_ends_before_the_next(self):
        """With a begin marker alone the next medium ends the one before it."""
        tokens = [5, 100, 7, 101, 7, 5, 102, 7]
        pictures = [medium(0, 5, [[0], [1]], grid=(2, 1)), medium(5, 8, [[2]], grid=(1, 1))]
        assert one_by_one(ROWS, tokens) == ([False] * 8, pictures, None)

    def test_text_inside_a_row(self):
        """A picture without an end marker that text breaks off has its whole rows."""
        tokens = [5, 100, 101, 7, 102, 1]
        picture = medium(0, 5, [[0, 1]], complete=False)
        assert one_by_one(ROWS, tokens) == ([False] * 5 + [True], [picture], None)

    def test_of_a_row_that_never_ends(self):
        """Without the end of its first row nobody knows the columns: there is nothing."""
        assert one_by_one(ROWS, [5, 100, 101]) == ([False] * 3, [], None)

    def test_of_one_order_and_range(self):
        """Codebooks one after another in one range are as long as the whole says, and nothing where it does not."""
        layout = TokenLayout(modality="audio", first=10, size=5, codebooks=2, order="sequential")
        assert parse(layout, [10, 11, 12, 13, 1]) == ([1], [medium(0, 4, [0, 1], [2, 3])])
        assert parse(layout, [10, 11, 12]) == ([], [])


class TestEnd:
    def test_last_cell_without_the_end_marker(self):
        """A picture whose last cell has come is complete, with what there is of its end marker."""
        cells = [4, 5, 100, 200, 101, 201]
        codes = ([[0, 1]], [[0, 1]])
        assert read(PAIR, [cells])[1] == [medium(0, 6, *codes, grid=(1, 2))]
        assert read(PAIR, [[*cells, 6]])[1] == [medium(0, 7, *codes, grid=(1, 2))]
        assert read(PAIR, [[*cells, 6, 7]])[1] == [medium(0, 8, *codes, grid=(1, 2))]

    def test_last_cell_without_the_row_end(self):
        """The same where the row has not ended yet."""
        layout = TokenLayout(modality="image", first=100, size=10, row_end=7, grid=(2, 1), opened=True)
        assert read(layout, [[100, 7, 101]])[1] == [medium(0, 3, [[0], [1]], grid=(2, 1))]
        assert read(layout, [[100, 7]])[1] == [medium(0, 2, [[0]], complete=False, grid=(2, 1))]

    def test_end_marker_before_the_last_cell(self):
        """The model itself ends the medium: what is whole of it is there, and it is not complete."""
        tokens = [*emu3(1, 2), EOL, *emu3(3), EOF, EOI, 9]
        picture = medium(0, 6, [[1, 2]], complete=False)
        assert one_by_one(EMU3, tokens) == ([False] * 6 + [True], [picture], None)
        assert read(EMU3, [tokens[:5]])[1] == [medium(0, 5, [[1, 2]], complete=False)]
        assert read(EMU3, [tokens[:4], tokens[4:5]])[1] == [medium(0, 5, [[1, 2]], complete=False)]
        assert one_by_one(PAIR, [4, 5, 100, 200, 6, 7, 1]) == ([False] * 6 + [True], [], None)

    def test_rows_that_may_go_on(self):
        """Whole rows of a picture that only its end marker ends are not complete without it."""
        tokens = [*emu3(1, 2), EOL, *emu3(3, 4)]
        assert read(EMU3, [tokens])[1] == [medium(0, 5, [[1, 2], [3, 4]], complete=False)]
        assert read(EMU3, [[*tokens, EOL, EOF]])[1] == [medium(0, 7, [[1, 2], [3, 4]], grid=(2, 2))]

    def test_stop_token_inside_a_picture(self):
        """An EOS that fits nowhere in the picture is handed on; without being the stop token it is an error."""
        parser = StreamParser(EMU3)
        assert parser.feed([*emu3(1), EOL, EOS], stopped=True) == [False, False, True]
        assert parser.error is None
        assert parser.finish() == [medium(0, 2, [[1]], complete=False)]
        assert parse(EMU3, [*emu3(1), EOL])[1] == [medium(0, 2, [[1]], complete=False)]
        with pytest.raises(TokenError, match=f"token {EOS} at position 2"):
            parse(EMU3, [*emu3(1), EOL, EOS])

    def test_only_the_last_token_may_be_the_stop_token(self):
        """A token that does not fit before it is an error all the same."""
        parser = StreamParser(EMU3)
        assert parser.feed([EOL, EOS], stopped=True) == [False, False]
        assert parser.error is not None

    def test_stop_token_that_fits(self):
        """The end marker as stop token is the end of the sound."""
        parser = StreamParser(LLASA)
        assert parser.feed([128264]) == [False]
        assert parser.feed([128261], stopped=True) == [False]
        assert parser.take() == [medium(0, 2, [0])]

    def test_after_an_error(self):
        """What was whole before the token that does not fit is kept."""
        parser = StreamParser(ORPHEUS)
        frame = [128267, 132364, 136461, 140558, 144655, 148752, 152849]
        parser.feed([128257, *frame, 128258, 1, 128257, *frame, 1, 2])
        assert "token 1 at position 18" in str(parser.error)
        sound = ([1], [2, 5], [3, 4, 6, 7])
        assert parser.finish() == [medium(0, 9, *sound), medium(10, 18, *sound, complete=False)]

    def test_text_where_a_medium_was_opened(self):
        """An answer that begins with text has no medium there; the next one begins as it does elsewhere."""
        begin, end = EMU3.begin[0], [EOL, EOF, EOI]
        tokens = [1, 2, begin, *emu3(5), *end, 3]
        picture = medium(2, 7, [[5]], grid=(1, 1))
        assert one_by_one(EMU3, tokens) == ([True, True, *[False] * 5, True], [picture], None)
        assert one_by_one(EMU3, tokens[2:]) == ([*[False] * 5, True], [medium(0, 5, [[5]], grid=(1, 1))], None)
        assert one_by_one(EMU3, [EOF, EOI, 1]) == ([False, False, True], [], None)
        assert "token 151846 at position 1" in read(EMU3, [[1, EOL]])[2]

    def test_nothing(self):
        """A stream without tokens, or with a begin marker alone, has no media and no error."""
        assert read(EMU3, [[]]) == ([], [], None)
        assert read(PAIR, [[4]]) == ([False], [], None)
        assert read(PAIR, [[4, 5]]) == ([False, False], [], None)
