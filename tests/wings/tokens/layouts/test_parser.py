"""Reading streams of tokens: written by hand, after what each model writes; and what does not fit."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from known_layouts import ANOLE, EMU3, JANUS, LLASA, MUSICGEN, ORPHEUS, OUTETTS
from token_layouts import medium, one_by_one, read

from vllm_mmout.errors import MMOutError, TokenError
from vllm_mmout.wings.tokens.layouts import StreamParser, TokenLayout, parse

EOL, EOF, EOI, EOS = 151846, 151847, 151853, 151850  # Emu3's
ROWS = TokenLayout(modality="image", first=100, size=10, row_end=7, begin=(5,))
PAIR = TokenLayout(modality="image", first=(100, 200), size=10, codebooks=2, grid=(1, 2), begin=(4, 5), end=(6, 7))
DELAYED = TokenLayout(
    modality="audio", first=(10, 20), size=5, codebooks=2, order="delayed", pad=9, begin=(1,), end=(2,)
)
BOOKS = TokenLayout(modality="audio", first=(10, 20), size=5, codebooks=2, order="sequential", begin=(1,), end=(2,))
SHARED = TokenLayout(modality="audio", first=10, size=5, codebooks=2, order="sequential", begin=(1,), end=(2,))


def emu3(*codes):
    return [151854 + code for code in codes]


class TestModels:
    def test_emu3(self):
        """Rows as the row ends say; the end is of two tokens; the EOS after it is text."""
        tokens = [*emu3(0, 1, 2), EOL, *emu3(32767, 4, 5), EOL, EOF, EOI, EOS]
        picture = medium(0, 10, [[0, 1, 2], [32767, 4, 5]], grid=(2, 3))
        assert one_by_one(EMU3, tokens) == ([False] * 10 + [True], [picture], None)

    def test_emu3_that_writes_two(self):
        """The first picture is opened by the prompt, the second by its own marker; text between them."""
        tokens = [*emu3(8), EOL, EOF, EOI, 9707, 151852, 151851, *emu3(7, 6), EOL, EOF, EOI]
        pictures = [medium(0, 4, [[8]], grid=(1, 1)), medium(6, 12, [[7, 6]], grid=(1, 2))]
        assert one_by_one(EMU3, tokens) == ([False] * 4 + [True] * 2 + [False] * 6, pictures, None)

    def test_janus(self):
        """576 codes, no marker after them."""
        assert parse(JANUS, list(range(576))) == (
            [],
            [medium(0, 576, np.arange(576).reshape(24, 24), grid=(24, 24))],
        )

    def test_janus_is_delivered_with_its_last_code(self):
        """Nothing has to follow a picture of a known grid."""
        parser = StreamParser(JANUS)
        parser.feed(list(range(575)))
        assert parser.take() == []
        assert parser.feed([16383]) == [False]
        assert [found.codes[0][23, 23] for found in parser.take()] == [16383]

    def test_anole(self):
        """Text, a picture between its markers, text, and another one."""
        tokens = [8710, 8197, *[4 + code % 8192 for code in range(1024)], 8196, 9000, 8197, *[8195] * 1024, 8196]
        first = np.arange(1024).reshape(32, 32)
        text, pictures = parse(ANOLE, tokens)
        assert text == [8710, 9000]
        assert pictures == [
            medium(1, 1027, first, grid=(32, 32)),
            medium(1028, 2054, np.full((32, 32), 8191), grid=(32, 32)),
        ]

    def test_orpheus(self):
        """Two frames of SNAC: the slots' ids and codebooks as Orpheus' own decoder takes them apart."""
        frame = [128266 + 1, 132362 + 2, 136458 + 3, 140554 + 4, 144650 + 5, 148746 + 6, 152842 + 7]
        again = [128266, 136457, 136458, 144649, 144650, 152841, 156937]
        sound = medium(1, 17, [1, 0], [2, 5, 4095, 0], [3, 4, 6, 7, 0, 4095, 4095, 4095])
        assert one_by_one(ORPHEUS, [128009, 128257, *frame, *again, 128258]) == ([True] + [False] * 16, [sound], None)

    @pytest.mark.parametrize("stopped", [False, True])
    def test_orpheus_ends_inside_a_frame(self, stopped):
        """Its end marker there, which may be the stop token, ends the sound: the frames before are kept."""
        frame = [128267, 132364, 136461, 140558, 144655, 148752, 152849]
        parser = StreamParser(ORPHEUS)
        assert parser.feed([128257, *frame, 128267, 132364]) == [False] * 10
        assert parser.feed([128258], stopped=stopped) == [False]
        assert parser.error is None
        assert parser.take() == [medium(0, 11, [1], [2, 5], [3, 4, 6, 7], complete=False)]

    def test_orpheus_after_a_prompt_that_begins_the_sound(self):
        """As its own code prompts it."""
        frame = [128267, 132364, 136461, 140558, 144655, 148752, 152849]
        parser = StreamParser(ORPHEUS, opened=ORPHEUS.opened_by([128259, 1, 128009, 128260, 128261, 128257]))
        assert parser.feed([*frame, 128258]) == [False] * 8
        assert parser.take() == [medium(0, 8, [1], [2, 5], [3, 4, 6, 7])]
        assert not ORPHEUS.opened_by([128259, 1, 128009, 128260])
        assert not ORPHEUS.opened_by([])
        assert EMU3.opened_by([])

    def test_llasa(self):
        """One codebook of 65536, opened by the prompt."""
        tokens = [128264, 193799, 128265, 128261, 128009]
        assert one_by_one(LLASA, tokens) == ([False] * 4 + [True], [medium(0, 4, [0, 65535, 1])], None)

    def test_llasa_cut_short(self):
        """A sound that ran into the limit of tokens is kept, and is not complete."""
        assert one_by_one(LLASA, [128264, 193799]) == ([False] * 2, [medium(0, 2, [0, 65535], complete=False)], None)

    def test_outetts(self):
        """One sound, among whose codes the words stand that it says; these are the text."""
        tokens = [9, 1001, 3002, 1003, 3004, 8, 7, 1000, 4023, 6, 51, 5]
        text = [True, False, False, False, False, True, True, False, False, True, False, True]
        sound = medium(0, 11, [1, 3, 0], [2, 4, 1023])
        assert one_by_one(OUTETTS, tokens) == (text, [sound], None)

    def test_outetts_cut_short(self):
        """The sound ends with its last code; text after that is no part of it."""
        tokens = [9, 1001, 3002, 8, 1003]
        assert read(OUTETTS, [tokens])[1] == [medium(0, 5, [1], [2], complete=False)]
        assert read(OUTETTS, [tokens[:4]])[1] == [medium(0, 3, [1], [2], complete=False)]
        assert read(OUTETTS, [[9, 8]]) == ([True, True], [], None)

    def test_text_inside_without_an_end(self):
        """A sound goes on to the next begin marker, or to the end of the answer."""
        layout = TokenLayout(modality="audio", first=100, size=10, begin=(50,), text_inside=True)
        tokens = [1, 50, 2, 100, 3, 101, 4, 50, 102, 5]
        text = [True, False, True, False, True, False, True, False, False, True]
        assert one_by_one(layout, tokens) == (text, [medium(1, 6, [0, 1]), medium(7, 9, [2])], None)

    def test_musicgen(self):
        """Three frames of four codebooks are six steps."""
        pad = 2048
        tokens = [
            *(10, pad, pad, pad),
            *(11, 20, pad, pad),
            *(12, 21, 30, pad),
            *(pad, 22, 31, 40),
            *(pad, pad, 32, 41),
            *(pad, pad, pad, 42),
        ]
        sound = medium(0, 24, [10, 11, 12], [20, 21, 22], [30, 31, 32], [40, 41, 42])
        assert one_by_one(MUSICGEN, tokens) == ([False] * 24, [sound], None)
        partial = medium(0, 18, [10], [20], [30], [40], complete=False)
        assert read(MUSICGEN, [tokens[:18]])[1] == [partial]

    def test_musicgen_of_fewer_frames_than_codebooks(self):
        """Padding before and after may share a step."""
        tokens = [10, 2048, 2048, 2048, 2048, 20, 2048, 2048, 2048, 2048, 30, 2048, 2048, 2048, 2048, 40]
        assert parse(MUSICGEN, tokens) == ([], [medium(0, 16, [10], [20], [30], [40])])


OR_2, OR_6 = (f", or token {token}, which ends the medium" for token in (2, 6))

MISFITS = [
    (ROWS, [1, 100], 1, 100, "text or token 5, which begins a medium"),
    (ROWS, [1, 7], 1, 7, "text or token 5, which begins a medium"),
    (ROWS, [5, 7], 1, 7, r"a code of codebook 0 \(100 to 109\) in row 0, column 0"),
    (ROWS, [5, 100, 101, 7, 102, 7], 5, 7, r"a code of codebook 0 \(100 to 109\) in row 1, column 1"),
    (ROWS, [5, 100, 7, 101, 102], 4, 102, r"the end of row 1 \(token 7\)"),
    (
        EMU3,
        [*emu3(1), EOL, *emu3(2, 3)],
        3,
        151857,
        rf"the end of row 1 \(token {EOL}\), or token {EOF}, which ends .*",
    ),
    (
        EMU3,
        [*emu3(1), EOI],
        1,
        EOI,
        rf"a code of codebook 0 .* in row 0, column 1, or the end of row 0 \(token {EOL}\), or token {EOF}, .*",
    ),
    (
        EMU3,
        [*emu3(1), EOL, EOI],
        2,
        EOI,
        rf"a code of codebook 0 .* in row 1, column 0, or token {EOF}, which ends the medium",
    ),
    (EMU3, [*emu3(1), EOL, EOF, 9], 3, 9, rf"token {EOI} of the marker end"),
    (EMU3, [EOF, 9], 1, 9, rf"token {EOI} of the marker end"),
    (EMU3, [EOL], 0, EOL, rf"a code of codebook 0 .* in row 0, column 0, or token {EOF}, which ends the medium"),
    (EMU3, [9, EOL], 1, EOL, "text or token 151851, which begins a medium"),
    (PAIR, [4, 6], 1, 6, "token 5 of the marker begin"),
    (PAIR, [5], 0, 5, "text or token 4, which begins a medium"),
    (PAIR, [4, 5, 200], 2, 200, rf"a code of codebook 0 \(100 to 109\) in row 0, column 0{OR_6}"),
    (PAIR, [4, 5, 100, 101], 3, 101, rf"a code of codebook 1 \(200 to 209\) in row 0, column 0{OR_6}"),
    (PAIR, [4, 5, 100, 200, 6, 1], 5, 1, "token 7 of the marker end"),
    (PAIR, [4, 5, 100, 200, 101, 201, 102], 6, 102, "token 6 of the marker end"),
    (PAIR, [4, 5, 100, 200, 101, 201, 7], 6, 7, "token 6 of the marker end"),
    (PAIR, [4, 5, 100, 200, 1], 4, 1, rf"a code of codebook 0 \(100 to 109\) in row 0, column 1{OR_6}"),
    (JANUS, [0, 99999], 1, 99999, r"a code of codebook 0 \(0 to 16383\) in row 0, column 1"),
    (ORPHEUS, [128257, 128266, 128266], 2, 128266, r"a code of codebook 1 \(132362 to 136457\) in frame 0, or .*"),
    (ORPHEUS, [128258], 0, 128258, "text or token 128257, which begins a medium"),
    (MUSICGEN, [2048], 0, 2048, r"a code of codebook 0 \(0 to 2047\) in step 0"),
    (MUSICGEN, [0, 0], 1, 0, r"padding \(token 2048\) for codebook 1 in step 0"),
    (MUSICGEN, [0, 2048, 2048, 2048, 1, 2048], 5, 2048, r"a code of codebook 1 \(0 to 2047\) in step 1"),
    (
        DELAYED,
        [1, 10, 9, 1],
        3,
        1,
        r"a code of codebook 0 \(10 to 14\) in step 1, or padding \(token 9\), or token 2, .*",
    ),
    (DELAYED, [1, 10, 9, 9, 20, 9], 5, 9, "token 2 of the marker end"),
    (DELAYED, [1, 10, 9, 11, 20, 9, 9], 6, 9, rf"a code of codebook 1 \(20 to 24\) in step 2{OR_2}"),
    (BOOKS, [1, 20], 1, 20, rf"a code of codebook 0 \(10 to 14\) in frame 0{OR_2}"),
    (BOOKS, [1, 10, 1], 2, 1, rf"a code .* 0 \(10 to 14\) in frame 1, or a code of codebook 1 \(20 to 24\){OR_2}"),
    (BOOKS, [1, 10, 11, 20, 12], 4, 12, rf"a code of codebook 1 \(20 to 24\) in frame 1{OR_2}"),
    (SHARED, [1, 10, 15], 2, 15, rf"a code \(10 to 14\){OR_2}"),
    (SHARED, [1, 10, 11, 15], 3, 15, r"a code \(10 to 14\), or token 2, which ends the medium"),
    (BOOKS, [1, 10, 20, 21], 3, 21, "token 2 of the marker end"),
    (OUTETTS, [9, 1000, 9, 1001], 3, 1001, r"a code of codebook 1 \(3000 to 4023\) in frame 0, or .*"),
    (OUTETTS, [1000, 3000, 9, 50], 3, 50, r"a code of codebook 0 .* in frame 1, or token 51, which ends the medium"),
]


@pytest.mark.parametrize(("layout", "tokens", "position", "token", "expected"), MISFITS)
def test_a_token_that_does_not_fit(layout, tokens, position, token, expected):
    """The error names the first such token, its position, and what was expected; later ones are ignored."""
    said = f"^token {token} at position {position} of the output .*: expected {expected}; .*layout"
    with pytest.raises(TokenError, match=said):
        parse(layout, tokens)
    parser = StreamParser(layout)
    steps = [parser.feed([each]) for each in [*tokens, 1, 3]]
    assert [step[0] for step in steps[position:]] == [False] * (len(tokens) + 2 - position)
    assert isinstance(parser.error, MMOutError)
    with pytest.raises(TokenError, match=said):
        raise parser.error


def test_codes_are_contiguous_and_the_callers_own():
    """Arrays of int64 in the order of memory, which may be written to."""
    _, (sound,) = parse(ORPHEUS, [128257, 128267, 132364, 136461, 140558, 144655, 148752, 152849, 128258])
    for codes in sound.codes:
        assert codes.dtype == np.int64
        assert codes.flags.c_contiguous
        assert codes.flags.writeable


def test_media_are_compared_by_what_they_hold():
    """Equal tokens and codes are equal; any difference shows."""
    one = medium(0, 4, [1, 2], [3, 4])
    assert one == medium(0, 4, [1, 2], [3, 4])
    others = [medium(0, 4, [1, 2]), medium(0, 4, [1, 2], [3, 5]), medium(1, 4, [1, 2], [3, 4]), "medium"]
    others += [medium(0, 4, [1, 2], [3, 4], complete=False), medium(0, 4, [1, 2], [3, 4], grid=(1, 2))]
    assert not any(one == other for other in others)


def test_tokens_are_read_without_the_engine():
    """With torch and vLLM blocked a stream is read, and of this package only errors, wings and tokens are loaded."""
    code = """
import sys
for name in ("torch", "vllm", "transformers"): sys.modules[name] = None
from vllm_mmout.wings.tokens.layouts import TokenLayout, parse
assert parse(TokenLayout(modality="audio", first=5, size=2), [1, 5, 6])[0] == [1]
parts = {name.split(".")[1] for name in sys.modules if name.startswith("vllm_mmout.")}
print(parts == {"errors", "importing", "lazy", "wing", "wings"})
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "True", done.stderr
