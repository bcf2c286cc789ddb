"""What a layout says, what it counts and writes, and what it must not say."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest
from known_layouts import ANOLE, EMU3, JANUS, LLASA, MUSICGEN, ORPHEUS

from vllm_mmout.errors import OptionError, TokenError
from vllm_mmout.wings.tokens.layouts import TokenLayout

IMAGE = {"modality": "image", "first": 100, "size": 10, "grid": [2, 2]}
SOUND = {"modality": "audio", "first": 100, "size": 10}
TWO = {**SOUND, "codebooks": 2}
WIDE = TokenLayout(modality="image", first=100, size=10, grid=(2, 3))

MEANT = [
    SOUND,
    {**SOUND, "begin": [110], "end": [99]},
    {**SOUND, "opened": True},
    {**SOUND, "text_inside": True},
    {**SOUND, "begin": [0], "end": [(1 << 31) - 1]},
    {**SOUND, "codebooks": 1024, "size": 4096},
    {**TWO, "order": "sequential", "size": [5, 5]},
    {**TWO, "first": [100, 110]},
    {**TWO, "first": [110, 100], "size": [5, 10]},
    {**TWO, "order": "delayed", "pad": 110},
    {**TWO, "order": "delayed", "pad": 99, "first": [100, 110], "begin": [3]},
    {**TWO, "order": "interleaved", "pattern": [1, 0, 1], "first": [100, 120, 110]},
    {**TWO, "order": "sequential", "size": [5, 10], "first": [100, 110]},
    {**IMAGE, "codebooks": 2, "order": "sequential", "size": [5, 10]},
    {**IMAGE, "codebooks": 2, "order": "interleaved", "pattern": [1, 0]},
    {**IMAGE, "grid": None, "row_end": 1},
    {**IMAGE, "row_end": 1},
]
"""Layouts near to the wrong ones below."""

WRONG = [
    ({**SOUND, "modality": "video"}, "modality", r"Invalid enum value 'video'.*got 'video'"),
    ({**SOUND, "first": "100"}, "first", r"Expected .*got '100'"),
    ({**SOUND, "size": 1.5}, "size", r"Expected .*got 1\.5"),
    ({**SOUND, "opened": 1}, "opened", "Expected `bool`.*got 1"),
    ({**IMAGE, "text_inside": True}, "text_inside", "is for audio only, got true with images; leave it out"),
    ({**SOUND, "codebooks": True}, "codebooks", "Expected `int`.*got True"),
    ({**SOUND, "begin": 5}, "begin", "Expected `array`.*got 5"),
    ({**IMAGE, "grid": [2, 2, 2]}, "grid", r"Expected `array` of length 2.*got \(2, 2, 2\)"),
    ({**SOUND, "order": "raster"}, "order", "Invalid enum value 'raster'"),
    ({**SOUND, "codebooks": 0}, "codebooks", "must be 1 or more, got 0; set it to"),
    ({**SOUND, "size": 0}, "size", "must be 1 or more codes.*got 0; use"),
    ({**TWO, "size": [5, 0]}, "size", r"must be 1 or more codes.*got \(5, 0\); use"),
    ({**SOUND, "size": 1 << 40}, "size", "4194304 at most in all slots, got 1099511627776; use"),
    ({**SOUND, "codebooks": 1 << 40}, "size", "4194304 at most in all slots"),
    ({**SOUND, "codebooks": 1024, "size": 4097}, "size", "4194304 at most in all slots, got 4097"),
    ({**TWO, "size": [5, 5, 5]}, "size", r"one number per codebook, got \[5, 5, 5\]; give 2"),
    ({**TWO, "first": [100, 110, 120]}, "first", r"one token id per slot, got \[100, 110, 120\]; give 2"),
    (
        {**TWO, "order": "interleaved", "pattern": [0, 1, 1], "first": [100, 110]},
        "first",
        r"one token id per slot, got \[100, 110\]; give 3",
    ),
    ({**SOUND, "first": -1}, "first", "must be a token id, 0 or more, got -1; use"),
    ({**SOUND, "first": 1 << 40}, "first", "must be a token id"),
    (
        {**TWO, "first": [100, 109]},
        "first",
        "slots 0 and 1 ranges that overlap, got 100 to 109 and 109 to 118; separate",
    ),
    (
        {**TWO, "first": [105, 100]},
        "first",
        "slots 1 and 0 ranges that overlap, got 100 to 109 and 105 to 114; separate",
    ),
    ({**TWO, "first": [100, 100]}, "first", "overlap.*give first as one number"),
    (
        {**TWO, "pattern": [0, 1]},
        "pattern",
        "goes with order \"interleaved\" only, got order 'flattened'; set that order",
    ),
    (
        {**TWO, "order": "interleaved", "pattern": [0, 0]},
        "pattern",
        r"every codebook.*got \[0, 0\]; name each of 0 to 1",
    ),
    ({**TWO, "order": "interleaved", "pattern": [0, 1, 2]}, "pattern", r"no other, got \[0, 1, 2\]; name"),
    ({**TWO, "order": "interleaved", "pattern": []}, "pattern", r"every codebook.*got \[\]; name"),
    (
        {**IMAGE, "codebooks": 2, "order": "interleaved", "pattern": [0, 1, 1]},
        "pattern",
        r"of an image must name each codebook once, got \[0, 1, 1\]; remove",
    ),
    ({**SOUND, "pad": 5}, "pad", "goes with order \"delayed\" only, got 5 with order 'flattened'; leave pad out"),
    ({**TWO, "order": "delayed"}, "pad", 'is required by order "delayed", got None; set'),
    ({**SOUND, "order": "delayed", "pad": 5}, "order", "needs 2 or more codebooks, got codebooks=1; leave order"),
    ({**TWO, "order": "sequential", "size": [5, 10]}, "size", r"must be equal, got \[5, 10\]; give one first"),
    ({**SOUND, "grid": [2, 2]}, "grid", r"is for images only, got \(2, 2\) with audio; leave it out"),
    ({**SOUND, "row_end": 5}, "row_end", "is for images only, got 5 with audio; leave it out"),
    ({**IMAGE, "grid": None}, "grid", "or row_end is required for an image, got neither; set grid"),
    ({**IMAGE, "grid": [0, 2]}, "grid", r"1 or more rows and columns, got \[0, 2\]; use"),
    (
        {**IMAGE, "codebooks": 2, "order": "sequential", "row_end": 5},
        "row_end",
        "an order that writes row by row, got order 'sequential'; leave row_end out",
    ),
    (
        {**IMAGE, "codebooks": 2, "order": "delayed", "pad": 4, "row_end": 5},
        "row_end",
        "an order that writes row by row, got order 'delayed'; leave row_end out",
    ),
    ({**IMAGE, "row_end": 105}, "row_end", r"codes of slot 0 \(100 to 109\), got 105; correct it"),
    ({**SOUND, "begin": [1, 109]}, "begin", "codes of slot 0.*got 109; correct it"),
    ({**SOUND, "end": [100]}, "end", "codes of slot 0.*got 100; correct it"),
    ({**TWO, "order": "interleaved", "end": [119]}, "end", r"codes of slot 1 \(110 to 119\), got 119; correct it"),
    ({**TWO, "order": "delayed", "pad": 109}, "pad", "codes of slot 0.*got 109; correct it"),
    ({**SOUND, "begin": [5], "end": [5]}, "end", "differ from other markers, got 5, which begin also has; correct"),
    ({**SOUND, "begin": [5, 5]}, "begin", "differ from other markers, got 5, which begin also has; correct"),
    ({**IMAGE, "row_end": 5, "end": [5]}, "row_end", "got 5, which end also has; correct"),
    ({**TWO, "order": "delayed", "pad": 5, "begin": [5]}, "pad", "got 5, which begin also has; correct"),
    ({**SOUND, "begin": [-1]}, "begin", "must be a token id, 0 or more, got -1; take"),
    ({**SOUND, "end": [1 << 31]}, "end", "must be a token id"),
    ({**IMAGE, "row_end": -5}, "row_end", "must be a token id, 0 or more, got -5; take"),
    (
        {**SOUND, "codebook": 2},
        "codebook",
        r"unknown field 'codebook'.*did you mean 'codebooks'\? \(known: modality, .*opened",
    ),
    ({**SOUND, "colour": 2}, "colour", r"unknown field 'colour' of a token layout \(known: modality"),
    ({"modality": "audio", "size": 5}, "first", "must have first, got modality, size"),
    ({}, "modality", "must have modality, got nothing"),
]


@pytest.mark.parametrize("mapping", MEANT)
def test_what_may_be_said(mapping):
    """Layouts without a contradiction are made, from Python as from JSON."""
    made = TokenLayout.from_mapping(json.loads(json.dumps(mapping)))
    assert made == TokenLayout(**mapping)
    assert (
        dataclasses.asdict(made).items()
        >= {name: tuple(value) if isinstance(value, list) else value for name, value in mapping.items()}.items()
    )


@pytest.mark.parametrize(("mapping", "field", "said"), WRONG)
def test_what_must_not_be_said(mapping, field, said):
    """A contradiction is an error that names the field, its value, and what to do."""
    with pytest.raises(OptionError, match=said) as caught:
        TokenLayout.from_mapping(mapping)
    assert caught.value.param == field
    assert field in str(caught.value)


@pytest.mark.parametrize("mapping", [None, [], "audio", 5])
def test_no_table(mapping):
    """What is no table of fields is said to be none."""
    with pytest.raises(OptionError, match="must be a table of fields, got"):
        TokenLayout.from_mapping(mapping)


def test_a_layout_stays():
    """Layouts are frozen, compared by their fields, and may be keys."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        JANUS.size = 5
    assert {TokenLayout.from_mapping(IMAGE): 1}[TokenLayout(**IMAGE)] == 1


class TestIds:
    def test_snac(self):
        """Each of the seven slots of Orpheus begins where the one before it ends."""
        assert [slot.first for slot in ORPHEUS.slots] == [128266, 132362, 136458, 140554, 144650, 148746, 152842]
        assert [slot.codebook for slot in ORPHEUS.slots] == [0, 1, 2, 2, 1, 2, 2]
        assert ORPHEUS.slots[-1].stop == 156938

    def test_interleaved_sizes(self):
        """Slots of one first are as wide as their codebooks."""
        layout = TokenLayout(
            modality="audio", first=5, size=(2, 3), codebooks=2, order="interleaved", pattern=(1, 0, 1)
        )
        assert [(slot.first, slot.stop) for slot in layout.slots] == [(5, 8), (8, 10), (10, 13)]

    @pytest.mark.parametrize(
        ("layout", "count", "inside", "outside"),
        [
            (EMU3, 32768 + 4, {151846, 151847, 151851, 151853, 151854, 184621}, {151850, 151852, 184622}),
            (JANUS, 16384 + 1, {0, 16383, 100016}, {16384}),
            (ANOLE, 8192 + 2, {4, 8195, 8196, 8197}, {3, 8198}),
            (ORPHEUS, 7 * 4096 + 2, {128257, 128258, 128266, 156937}, {128265, 156938}),
            (LLASA, 65536 + 2, {128260, 128261, 128264, 193799}, {128263, 193800}),
            (MUSICGEN, 2049, {0, 2048}, {2049}),
        ],
    )
    def test_of_models(self, layout, count, inside, outside):
        """All codes, markers, row ends and padding are media, and nothing else."""
        assert len(layout.token_ids) == count
        assert inside <= layout.token_ids
        assert not outside & layout.token_ids


class TestCounts:
    def test_of_images(self):
        """Cells, row ends and markers: Emu3's picture of 720 pixels has 90 rows and columns."""
        assert EMU3.tokens_of(90, 90) == 90 * 91 + 3
        assert EMU3.tokens_of(90, 90, opened=True) == 90 * 91 + 2
        assert JANUS.tokens_of(24, 24, opened=True) == 576
        assert ANOLE.tokens_of(32, 32) == 1026

    def test_of_sounds(self):
        """Frames of seven tokens in Orpheus; three steps more than frames in MusicGen."""
        assert ORPHEUS.tokens_of_frames(12) == 86
        assert MUSICGEN.tokens_of_frames(500) == 503 * 4
        assert LLASA.tokens_of_frames(50, opened=True) == 51

    @pytest.mark.parametrize(
        ("ask", "said"),
        [
            (lambda: WIDE.tokens_of(3, 2), "has 2 rows and 3 columns, got 3 rows and 2 columns; ask"),
            (lambda: EMU3.tokens_of(0, 5), "1 row and 1 column or more, got 0 rows"),
            (lambda: EMU3.tokens_of_frames(5), "for audio, but this layout is for image; use tokens_of"),
            (lambda: LLASA.tokens_of(5, 5), "for images, but this layout is for audio; use tokens_of_frames"),
            (lambda: LLASA.tokens_of_frames(0), "frames must be 1 or more, got 0"),
        ],
    )
    def test_refused(self, ask, said):
        """What a layout cannot have is not counted."""
        with pytest.raises(OptionError, match=said):
            ask()


class TestBuild:
    def test_emu3(self):
        """Each row ends with its token, the last too; the begin marker is left out where the prompt has it."""
        tokens = [151855, 151856, 151846, 151857, 151858, 151846, 151847, 151853]
        assert EMU3.build([[[1, 2], [3, 4]]], opened=True) == tokens
        assert EMU3.build([np.array([[1, 2], [3, 4]])]) == [151851, *tokens]

    def test_orpheus(self):
        """A frame as Orpheus writes it."""
        frame = [128267, 132364, 136461, 140558, 144655, 148752, 152849]
        assert ORPHEUS.build([[1], [2, 5], [3, 4, 6, 7]]) == [128257, *frame, 128258]

    def test_sequential(self):
        """Codebook after codebook."""
        layout = TokenLayout(modality="image", first=(10, 20), size=5, codebooks=2, order="sequential", grid=(1, 2))
        assert layout.build([[[1, 2]], [[3, 4]]]) == [11, 12, 23, 24]

    def test_delayed_as_musicgen_of_transformers(self):
        """Padding lies where MusicGen's own mask of the delay has it."""
        torch = pytest.importorskip("torch")
        musicgen = pytest.importorskip("transformers.models.musicgen.modeling_musicgen")
        frames, books = 6, 4
        bos = torch.full((books, 1), 2048)
        model = SimpleNamespace(num_codebooks=books, config=SimpleNamespace(audio_channels=1))
        _, mask = musicgen.MusicgenForCausalLM.build_delay_pattern_mask(model, bos, 2048, frames + books)
        padded = mask[:, 1:].numpy().T == 2048  # without the step before the first; [steps, codebooks]
        tokens = MUSICGEN.build(np.ones((books, frames), int))
        assert np.array_equal(np.array(tokens).reshape(-1, books) == 2048, padded)
        assert padded.sum() == 12

    @pytest.mark.parametrize(
        ("layout", "codes", "said"),
        [
            (ORPHEUS, [[1], [2]], "one array per codebook, 3 in all, got 2"),
            (ORPHEUS, [[1], [2, 3], [4, 5, 6]], r"frames, each with \[1, 2, 4\] codes per codebook, got \[1, 2, 3\]"),
            (ORPHEUS, [[1], [2, 3], [4, 5, 6, 7, 8, 9, 0, 1]], r"got \[1, 2, 8\] codes"),
            (LLASA, [[]], r"must be \[n\] and not empty, got \[\[0\]\]"),
            (LLASA, [[[1]]], r"must be \[n\] and not empty, got \[\[1, 1\]\]"),
            (EMU3, [[1, 2]], r"must be \[rows, columns\] and not empty, got \[\[2\]\]"),
            (JANUS, [np.zeros((24, 23), int)], r"must be of \[24, 24\] \[rows, columns\].*got \[\[24, 23\]\]"),
            (LLASA, [[65536, 0]], "codes of codebook 0 must be 0 to 65535, got 0 to 65536"),
            (LLASA, [[-1]], "codes of codebook 0 must be 0 to 65535, got -1 to -1"),
            (LLASA, [[1.0]], "must be integers, got float64 for codebook 0"),
        ],
    )
    def test_refused(self, layout, codes, said):
        """Codes that the layout cannot write are an error that says what it takes."""
        with pytest.raises(TokenError, match=said):
            layout.build(codes)

    def test_pictures_of_two_shapes(self):
        """Each codebook of a picture has the same cells."""
        layout = TokenLayout(modality="image", first=10, size=5, codebooks=2, row_end=1)
        with pytest.raises(TokenError, match="must be of one shape"):
            layout.build([[[1, 2]], [[1], [2]]])
