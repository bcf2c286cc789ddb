"""Pictures and sounds out of generated tokens, on the real engine: what ``LLM.generate`` gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from model_folders import kept_engine
from scripted_tokens import scripted, up_to_the_stop
from token_models import AUDIO_LAYOUT, BEGIN, END, ENGINE, FIRST, ROW_END, audio_model, image_model
from token_streams import PICTURE, SOUND, TEXT, codes, fail_on, in_one_step, of_text, seen
from vllm import SamplingParams
from vllm.v1.engine.output_processor import OutputProcessor, RequestState

from vllm_mmout import OutputParams
from vllm_mmout.errors import DecodeError, OptionError, TokenError
from vllm_mmout.wings.tokens.engine.outputs import TokenRequestOutput

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def image_folder(tmp_path_factory):
    """A model that writes pictures."""
    return image_model(tmp_path_factory.mktemp("image") / "painter")


@pytest.fixture(scope="module")
def painter(image_folder):
    """Its engine, bound."""
    return kept_engine(image_folder, **ENGINE)


@pytest.fixture(scope="module")
def plain(image_folder):
    """The same model on vLLM as it is."""
    llm = kept_engine(image_folder, additional_config={"mmout": {"output_processor": "none"}}, **ENGINE)
    assert type(llm.llm_engine.output_processor) is OutputProcessor
    return llm


@pytest.fixture(scope="module")
def singer(tmp_path_factory):
    """The engine of a model that writes sounds."""
    return kept_engine(audio_model(tmp_path_factory.mktemp("audio") / "singer"), **ENGINE)


def run(llm, tokens, prompt="draw", **options):
    """The answers to one prompt."""
    return llm.generate(prompt, scripted(tokens, **options), use_tqdm=False)[0].outputs


def alone(llm, *pictures):
    """Emu3's decoder through plain transformers, as grey levels."""
    decoder = next(iter(llm.llm_engine.output_processor.binding.processors.values()))
    from transformers import Emu3VQVAE

    model = Emu3VQVAE.from_pretrained(f"{llm.llm_engine.vllm_config.model_config.model}/decoder").eval()
    assert decoder.modality == "image"
    with torch.inference_mode():
        decoded = [model.decode(torch.from_numpy(one)[None])[0] for one in pictures]
    return [((one * 0.5 + 0.5) * 255).round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).numpy() for one in decoded]


def test_text_stays_as_it_is(painter, plain):
    """Requests for text give token for token and character for character what vLLM gives without us."""
    params = [
        SamplingParams(max_tokens=40, temperature=1.0, seed=seed, allowed_token_ids=TEXT, logprobs=2, **options)
        for seed, options in enumerate(
            ({}, {"n": 3}, {"stop": ["e", "x"]}, {"min_tokens": 20, "stop": ["a"]}, {"stop_token_ids": [65, 66]})
        )
    ]
    prompts = ["a cat", "zwölf Boxkämpfer", "<boi>", "three", " "]
    ours, theirs = (llm.generate(prompts, params, use_tqdm=False) for llm in (painter, plain))
    assert any(completion.text for result in theirs for completion in result.outputs)
    for one, other in zip(ours, theirs, strict=True):
        assert [seen(completion) for completion in one.outputs] == [seen(completion) for completion in other.outputs]
        assert [completion.multimodal for completion in one.outputs] == [[]] * len(one.outputs)


def test_a_picture_is_what_its_decoder_makes_of_its_codes(painter, plain):
    """Bit by bit; the text around is vLLM's, which leaves special tokens out too."""
    first, second = codes(3, 4), codes(5, 2, seed=1)
    tokens = [*of_text("a cat: "), *PICTURE.build((first,)), *of_text(" and é dog "), *PICTURE.build((second,))]
    (ours,), (theirs,) = run(painter, tokens, logprobs=1), run(plain, tokens, logprobs=1)
    assert seen(ours) == seen(theirs)
    assert ours.text == "a cat:  and é dog "
    for picture, expected, grid in zip(ours.multimodal, alone(painter, first, second), (first, second), strict=True):
        np.testing.assert_array_equal(picture.array, expected)
        start, stop = picture.span
        assert list(ours.token_ids[start:stop]) == PICTURE.build((grid,))
        assert not picture.partial


def test_a_sound_is_what_its_decoder_makes_of_its_codes(singer):
    """Sample by sample."""
    from transformers import MimiModel

    wanted = tuple(np.random.default_rng(3).integers(0, AUDIO_LAYOUT["size"], (4, 9)))
    (answer,) = run(singer, [*of_text("la "), *SOUND.build(wanted), *of_text(".")])
    (sound,) = answer.multimodal
    model = MimiModel.from_pretrained(f"{singer.llm_engine.vllm_config.model_config.model}/decoder").eval()
    with torch.inference_mode():
        expected = model.decode(torch.from_numpy(np.stack(wanted))[None]).audio_values[0].numpy()
    np.testing.assert_array_equal(sound.samples, expected)
    assert (answer.text, sound.rate, sound.partial) == ("la .", model.config.sampling_rate, False)


def test_pictures_that_are_ready_together(painter):
    """Sixteen requests at once: each picture is its own, within one grey level of the decoder alone."""
    grids = [codes(4, 4, seed) for seed in range(16)]
    results = painter.generate(
        ["draw"] * len(grids), [scripted(PICTURE.build((grid,))) for grid in grids], use_tqdm=False
    )
    for result, expected in zip(results, alone(painter, *grids), strict=True):
        (picture,) = result.outputs[0].multimodal
        assert np.abs(picture.array.astype(int) - expected).max() <= 1


def test_a_stream_may_end_anywhere(painter):
    """At each cut of a stream: whole rows come, and say that they are not all; the text and the reason are vLLM's."""
    grid = codes(3, 4)
    tokens = [*of_text("one "), *PICTURE.build((grid,)), *of_text(" two")]
    (whole,) = alone(painter, grid)
    prompts, cuts = ["draw"] * len(tokens), range(1, len(tokens) + 1)
    results = painter.generate(prompts, [scripted(tokens, max_tokens=cut) for cut in cuts], use_tqdm=False)
    begun, row = len(of_text("one ")) + 1, 4 + 1
    for cut, result in zip(cuts, results, strict=True):
        (answer,) = result.outputs
        assert (answer.finish_reason, len(answer.token_ids)) == ("length", cut)
        assert answer.text == "one "[:cut] + " two"[: max(0, cut - (len(tokens) - 4))]
        taken = cut - begun  # the end of the first row makes it whole, of others their last code
        rows = min(3, (taken + 1) // row) if taken >= row else 0
        assert [picture.height for picture in answer.multimodal] == ([2 * rows] if rows else [])
        for picture in answer.multimodal:
            assert picture.partial == (cut <= begun + 3 * row)  # how many rows it has, its end says
        if rows == 3:
            np.testing.assert_array_equal(answer.multimodal[0].array, whole)


def test_tokens_outside_the_layout_end_their_request_alone(painter):
    """The request fails with the token and its place; those beside it do not notice, and the engine forgets it."""
    good = PICTURE.build((codes(2, 2),))
    bad = [*good[:3], *of_text("x"), *of_text("no more than this is generated" * 8)]
    results = painter.generate(["a", "b", "c"], [scripted(one) for one in (good, bad, good)], use_tqdm=False)
    assert [len(result.outputs[0].multimodal) for result in (results[0], results[2])] == [1, 1]
    assert isinstance(results[1], TokenRequestOutput)
    assert [result.error is None for result in results] == [True, False, True]
    with pytest.raises(TokenError, match="at position 3"):
        _ = results[1].outputs
    with pytest.raises(TokenError, match="at position 3"):
        run(painter, bad)
    with pytest.raises(TokenError, match="at position 3"):
        run(painter, bad, n=3)
    assert not painter.llm_engine.has_unfinished_requests()
    assert not painter.llm_engine.output_processor.parent_requests


def test_a_conversation_may_hold_pictures(painter):
    """``LLM.chat`` gives them as ``generate`` does, and raises what is wrong with the only conversation."""
    template = "{% for one in messages %}{{ one.content }}{% endfor %}"
    said = [{"role": "user", "content": "draw"}]
    good, bad = PICTURE.build((codes(2, 2),)), [ROW_END]
    options = {"chat_template": template, "use_tqdm": False}
    (result,) = painter.chat(said, OutputParams(sampling=scripted(good)), **options)
    assert len(result.outputs[0].multimodal) == 1
    with pytest.raises(TokenError, match="at position 0"):
        painter.chat(said, scripted(bad), **options)
    results = painter.chat([said, said], [scripted(good), scripted(bad)], **options)
    assert [type(one) is TokenRequestOutput for one in results] == [False, True]


@pytest.mark.parametrize("n", [1, 3])
def test_a_decoder_that_fails(painter, monkeypatch, n):
    """Its request fails with its error, all answers of it at once; others are decoded, and nothing is left waiting."""
    fail_on(monkeypatch, painter.llm_engine.output_processor, (1, 9))
    good, bad = PICTURE.build((codes(2, 2),)), PICTURE.build((codes(1, 9),))
    results = painter.generate(["a", "b", "c"], [scripted(one, n=n) for one in (good, bad, good)], use_tqdm=False)
    assert [len(one.multimodal) for result in (results[0], results[2]) for one in result.outputs] == [1] * 2 * n
    with pytest.raises(DecodeError, match="ValueError: no pictures") as raised:
        _ = results[1].outputs
    assert isinstance(raised.value.__cause__, ValueError)
    assert not painter.llm_engine.has_unfinished_requests()
    assert not painter.llm_engine.output_processor.parent_requests


def test_each_of_several_answers_has_its_own_media(painter):
    """With n, answers that end with a picture wait for it, and come with those that have none."""
    grid = codes(2, 3)
    answers = run(painter, [*PICTURE.build((grid,)), *of_text("ok")], n=4)
    (expected,) = alone(painter, grid)
    assert [answer.index for answer in answers] == [0, 1, 2, 3]
    for answer in answers:
        (picture,) = answer.multimodal
        assert np.abs(picture.array.astype(int) - expected).max() <= 1
    assert not painter.llm_engine.output_processor.parent_requests


def test_a_stop_string_ends_a_stream_after_a_picture(painter, plain):
    """Text, reason and tokens are vLLM's; what came before is delivered."""
    tokens = [*PICTURE.build((codes(2, 2),)), *of_text("here is the end of it")]
    (ours,), (theirs,) = run(painter, tokens, stop=["the end"]), run(plain, tokens, stop=["the end"])
    assert (ours.stop_reason, ours.text) == ("the end", "here is ")
    assert seen(ours) == seen(theirs)
    assert len(ours.multimodal) == 1


def test_what_a_prompt_says_is_never_media(painter):
    """Texts of special tokens in a prompt are the user's: nothing of them is parsed, nor changes what is."""
    prompt = "<boi><code 1><code 2><eol><eoi> <boi><code 3>"
    assert painter.get_tokenizer().encode(prompt)[:3] == [BEGIN, FIRST + 1, FIRST + 2]
    (answer,) = run(painter, of_text("nothing"), prompt=prompt)
    assert (answer.text, answer.multimodal) == ("nothing", [])
    (answer,) = run(painter, PICTURE.build((codes(2, 2),)), prompt=prompt)
    assert [picture.span for picture in answer.multimodal] == [(0, 2 + 2 * 3)]


def test_tokens_can_be_left_alone(painter, plain):
    """``output="none"``: nothing is parsed, nothing fails, the text is vLLM's with all that it says of media tokens."""
    tokens = [*of_text("a"), BEGIN, END, ROW_END, FIRST + 1, *of_text("b")]
    params = scripted(tokens, skip_special_tokens=False)
    result = painter.generate("draw", OutputParams(sampling=params, output="none"), use_tqdm=False)[0]
    assert result.outputs[0].text == plain.generate("draw", params, use_tqdm=False)[0].outputs[0].text
    assert result.outputs[0].text == "a<boi><eoi><eol><code 1>b"


def test_media_tokens_are_no_text_whatever_is_asked_of_special_tokens(painter):
    """With ``skip_special_tokens=False`` other special tokens are in the text, those of media are not."""
    tokens = [*of_text("a"), *PICTURE.build((codes(1, 1),)), 256, *of_text("b")]
    (answer,) = run(painter, tokens, skip_special_tokens=False)
    assert (answer.text, len(answer.multimodal)) == ("a<s>b", 1)


def test_states_stay_vllms_for_who_wants_no_media(painter):
    """A request that leaves its tokens alone runs none of our functions."""
    engine = painter.llm_engine
    params = OutputParams(sampling=scripted(of_text("abc")), output="none")
    original = OutputProcessor.add_request
    kinds = []

    def look(self, request, *args, **kwargs):
        original(self, request, *args, **kwargs)
        kinds.append(self.request_states[request.request_id])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OutputProcessor, "add_request", look)
        painter.generate("draw", params, use_tqdm=False)
    assert [type(kind) for kind in kinds] == [RequestState]
    assert type(kinds[0].detokenizer).__module__.startswith("vllm.")
    assert not engine.has_unfinished_requests()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"overlap": 8}, "overlap is not for painter, which generates tokens"),
        ({"output": "classes"}, r"has no output 'classes' \(known: media, mixed, none\)"),
        ({"processor": "segmentation"}, "no output processor 'segmentation'"),
        ({"sampling": {"n": 2}}, "sampling must be vLLM's SamplingParams, got dict"),
        ({"path": "x.png"}, "path is not for painter"),
    ],
)
def test_options_that_cannot_be_honoured(painter, options, said):
    """They are refused before the engine gets anything."""
    with pytest.raises(OptionError, match=said):
        painter.generate("draw", OutputParams(**options), use_tqdm=False)
    assert not painter.llm_engine.has_unfinished_requests()


@up_to_the_stop
def test_media_behind_a_stop_string_are_dropped_with_their_tokens(painter, monkeypatch):
    """Where a step brings several tokens, vLLM drops those behind a stop string; an object of them goes too."""
    before, behind = PICTURE.build((codes(2, 2),)), PICTURE.build((codes(1, 3),))
    tokens = [*before, *of_text("stop"), *behind]
    in_one_step(monkeypatch, painter, tokens)
    (answer,) = run(painter, tokens[:1], stop=["stop"])
    assert (answer.stop_reason, list(answer.token_ids)) == ("stop", tokens[: len(before) + 4])
    assert [picture.span for picture in answer.multimodal] == [(0, len(before))]
