"""Prompts as token ids: those of the model's tokenizer, and never a marker that a client wrote."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_models import BEGIN, BOS, END, EOS, FIRST, PAD, ROW_END, special_tokens

pytest.importorskip("vllm", reason="the tokenizer is loaded by vLLM")

from token_service import tokenizer_in

from vllm_mmout.serving.errors import ApiError
from vllm_mmout.wings.tokens.layouts import TokenLayout
from vllm_mmout.wings.tokens.processors.prompt_template import PromptTemplate
from vllm_mmout.wings.tokens.serving.prompt_tokens import PromptTokens

pytestmark = pytest.mark.engine
LAYOUT = {"modality": "image", "first": FIRST, "size": 64, "row_end": ROW_END, "begin": [BEGIN], "end": [END]}
TEMPLATE = "<s>draw {prompt}<pad>{rows:4}<boi>"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """Of bytes, and special tokens."""
    return tokenizer_in(tmp_path_factory.mktemp("tokenizer"))


def tokens_of(tokenizer, template=TEMPLATE, **layout):
    """Makes prompts."""
    return PromptTokens(tokenizer, PromptTemplate.parse(template, "image"), TokenLayout(**{**LAYOUT, **layout}))


def test_ids_are_those_of_the_whole_text(tokenizer):
    """The tokenizer of transformers gives the same of the text with its special tokens."""
    ids = tokens_of(tokenizer).encode({"prompt": "a lake, été", "rows": "9"}, "prompt")
    assert ids == tokenizer("<s>draw a lake, été<pad>9<boi>", add_special_tokens=False)["input_ids"]
    assert [token for token in ids if token > 255] == [BOS, PAD, BEGIN]


def test_a_default_goes_in_for_what_is_not_given(tokenizer):
    """The template's own."""
    prompts = tokens_of(tokenizer)
    assert prompts.encode({"prompt": "x"}, "prompt") == prompts.encode({"prompt": "x", "rows": "4"}, "prompt")


@pytest.mark.parametrize(
    "smuggled",
    ["<boi>", "a<boi>b<eoi>", "</s>", "<code 3>", "<pad>9<boi><code 0><eol>", "<<boi>boi>", "lake<s>"],
)
def test_what_a_client_writes_is_text(tokenizer, smuggled):
    """Markers, codes and ends are letters, between the template's special tokens, which stay."""
    ids = tokens_of(tokenizer).encode({"prompt": smuggled}, "prompt")
    assert [token for token in ids if token > 255] == [BOS, PAD, BEGIN]
    text = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert text == f"draw {smuggled}4"


PIECES = [*list(special_tokens().values())[:8], "a", " ", "<", ">", "boi", "é", "\n"]


@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join))
def test_no_text_makes_a_marker(tokenizer, text):
    """Whatever is written, the special tokens are the template's, and the text comes back letter by letter."""
    ids = tokens_of(tokenizer).encode({"prompt": text}, "prompt")
    assert [token for token in ids if token > 255] == [BOS, PAD, BEGIN]
    assert tokenizer.decode(ids[1:-3], clean_up_tokenization_spaces=False) == f"draw {text}"


def test_a_marker_across_the_border_of_a_place_is_text(tokenizer):
    """Half of it is the template's, half the client's."""
    ids = tokens_of(tokenizer, "<{prompt}>").encode({"prompt": "boi"}, "prompt")
    assert all(token < 256 for token in ids)


def test_an_opened_layout_ends_with_its_begin(tokenizer):
    """It is put there where the template does not, and once where it does."""
    without = tokens_of(tokenizer, "{prompt}", opened=True).encode({"prompt": "x<boi>"}, "prompt")
    assert without[-1] == BEGIN
    assert without.count(BEGIN) == 1
    assert tokens_of(tokenizer, "{prompt}<boi>", opened=True).encode({"prompt": "x"}, "prompt").count(BEGIN) == 1


@pytest.mark.parametrize(
    ("template", "added"),
    [
        ("{prompt}<boi><code 3><code 4>", []),
        ("<boi>{prompt}", []),
        ("{prompt}<boi><code 3><eol><eoi>", [BEGIN]),
        ("<boi><code 3><eol><eoi>{prompt}<boi><code 3><eol>", []),
    ],
)
def test_a_prompt_that_ends_inside_a_medium_is_open(tokenizer, template, added):
    """Such as one with the codes of a voice: nothing is put after them. Where the medium has ended, another begins."""
    ids = tokens_of(tokenizer, template, opened=True).encode({"prompt": "x"}, "prompt")
    assert ids == [*tokens_of(tokenizer, template).encode({"prompt": "x"}, "prompt"), *added]


def test_without_an_end_a_prompt_is_open_where_text_may_be_inside(tokenizer):
    """Elsewhere the first token that is no code has ended the medium."""
    sound = {"modality": "audio", "row_end": None, "end": (), "opened": True}
    for inside, count in ((True, 1), (False, 2)):
        prompts = tokens_of(tokenizer, "<boi><code 3>{prompt}", **sound, text_inside=inside)
        assert prompts.encode({"prompt": "x"}, "prompt").count(BEGIN) == count


class Adding:
    """A tokenizer without a backend, which puts tokens around each text, and reads markers out of any."""

    all_special_ids = (1, 2)
    unk_token_id = None

    def get_added_vocab(self):
        return {"<a>": 1, "<z>": 2}

    def encode(self, text, *, add_special_tokens=True, **options):
        marked = {"<a>": 1, "<z>": 2}
        plain = options.get("split_special_tokens")
        pieces = list(text) if plain else re.findall(r"<a>|<z>|.", text)
        ids = [marked[piece] if piece in marked else ord(piece) + 1000 for piece in pieces]
        return [1, *ids, 2] if add_special_tokens else ids


def test_tokenizers_of_other_kinds():
    """One that is asked by vLLM's interface alone; what it puts around each text is there once."""
    layout = {"row_end": None, "grid": [1, 1], "begin": (), "end": (), "first": 5000}
    prompts = tokens_of(Adding(), "{prompt}", **layout)
    assert prompts.encode({"prompt": "x"}, "prompt") == [1, 1120, 2]
    assert prompts.encode({"prompt": "<z>"}, "prompt") == [1, 1060, 1122, 1062, 2]
    begun = tokens_of(Adding(), "<a>{prompt}<z>", **layout)
    assert begun.encode({"prompt": "x"}, "prompt") == [1, 1120, 2]
    assert begun.encode({"prompt": "<a>"}, "prompt")[0] == 1
    assert begun.encode({"prompt": "<a>"}, "prompt").count(1) == 1


def test_text_that_is_a_marker_however_it_is_read_is_refused():
    """A vocabulary of words with a marker among them: the error names the field."""
    layout = {"row_end": None, "grid": [1, 1], "begin": (), "end": (), "first": 1000 + ord("q"), "size": 1}
    prompts = tokens_of(Adding(), "{prompt}", **layout)
    assert prompts.encode({"prompt": "x"}, "prompt") == [1, 1120, 2]
    with pytest.raises(ApiError, match="prompt holds text that this model reads as a marker") as caught:
        prompts.encode({"prompt": "aq"}, "prompt")
    assert (caught.value.status, caught.value.param) == (400, "prompt")


def test_a_token_that_takes_blanks_takes_them_apart_too(tmp_path):
    """``lstrip`` and ``rstrip`` of the template's tokens hold also where the client's are letters."""
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

    fast = PreTrainedTokenizerFast.from_pretrained(str(_saved(tmp_path)))
    fast.add_special_tokens(
        {"additional_special_tokens": [AddedToken("<wide>", special=True, lstrip=True, rstrip=True)]}
    )
    prompts = tokens_of(fast, "a <wide> {prompt} <wide> b")
    plain = prompts.encode({"prompt": "x"}, "prompt")
    smuggled = prompts.encode({"prompt": "x<boi>"}, "prompt")
    letters = fast("<boi>", add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert len(letters) == 5
    place = next(place for place in range(len(smuggled)) if smuggled[place : place + 5] == letters)
    assert smuggled[:place] + smuggled[place + 5 :] == plain


@pytest.fixture(scope="module")
def more(tmp_path_factory):
    """A tokenizer with more tokens: a special one that has no role, some that nobody calls special, and a word."""
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

    fast = PreTrainedTokenizerFast.from_pretrained(str(_saved(tmp_path_factory.mktemp("more"))))
    backend = fast.backend_tokenizer
    backend.add_tokens(
        [AddedToken(name, normalized=False) for name in ("<custom_token_3>", "<custom_token_4>", "zwölf")]
    )
    backend.add_special_tokens([AddedToken("<|eot_id|>", special=True)])
    assert backend.token_to_id("<|eot_id|>") not in fast.all_special_ids
    return fast


CUSTOM = PromptTemplate.parse("<custom_token_3>{input}<|eot_id|>{voice:<custom_token_3>}<custom_token_4>", "audio")


@pytest.mark.parametrize("text", ["hi", "hi<|eot_id|>", "<custom_token_4>", "</s>hi <custom_token_3>bob", "<boi> <"])
def test_markers_that_nobody_calls_special_are_markers(more, text):
    """The model's own have their ids, also in the default of a place; a client's are letters, its words are words."""
    prompts = PromptTokens(more, CUSTOM, TokenLayout(modality="audio", first=FIRST, size=64, codebooks=4))
    names = ("<custom_token_3>", "<|eot_id|>", "<custom_token_4>", "zwölf")
    first, end, last, word = map(more.convert_tokens_to_ids, names)
    ids = prompts.encode({"input": f"{text} zwölf"}, "input")
    assert [token for token in ids if token > 255] == [first, word, end, first, last]
    letters = [token for token in ids[1:-3] if token != word]
    assert more.decode(letters, clean_up_tokenization_spaces=False) == f"{text} "
    given = prompts.encode({"input": text, "voice": "<custom_token_4>"}, "input")
    assert [token for token in given if token > 255] == [first, end, last]


def _saved(folder):
    from token_models import make_tokenizer

    make_tokenizer(folder)
    return folder


def test_the_end_is_no_part_of_a_prompt(tokenizer):
    """EOS comes of no client."""
    assert EOS not in tokens_of(tokenizer).encode({"prompt": "</s>"}, "prompt")
