"""Answers whose media are whole, on the real engine: random models, batches of all kinds, and what is refused."""

from __future__ import annotations

import pytest
from model_folders import kept_engine, runner_of
from token_models import AUDIO_LAYOUT, END, ENGINE, EOS, FIRST, IMAGE_LAYOUT, audio_model, image_model
from vllm import SamplingParams

from vllm_mmout import OutputParams
from vllm_mmout.errors import OptionError
from vllm_mmout.wings.tokens.guided.guide import KEY

pytestmark = pytest.mark.engine

CELL = 2
"""Pixels a side that the decoder makes of a code."""
SHORT_OF_MEMORY = {"max_num_seqs": 48, "block_size": 32, "max_model_len": 256, "num_gpu_blocks_override": 40}
"""Requests begin that cannot all go on: some are preempted, and resumed."""
ARGUMENTS = {name: value for name, value in ENGINE.items() if name != "logits_processors"}


@pytest.fixture(scope="module")
def painter(tmp_path_factory):
    """The engine of a model of random weights that may write pictures; few requests at a time, in little memory."""
    folder = image_model(tmp_path_factory.mktemp("image") / "painter")
    return kept_engine(folder, **{**ARGUMENTS, **SHORT_OF_MEMORY})


@pytest.fixture(scope="module")
def singer(tmp_path_factory):
    """One that may write sounds."""
    return kept_engine(audio_model(tmp_path_factory.mktemp("audio") / "singer"), **ARGUMENTS)


def guided(output="media", grid=None, **sampling):
    """Params of a guided request."""
    return OutputParams(output=output, grid=grid, sampling=SamplingParams(**{"max_tokens": 60, **sampling}))


def generate(llm, params, prompts="draw"):
    """The answers to some prompts, each a list."""
    prompts = [prompts] * len(params) if isinstance(params, list) else [prompts]
    return [result.outputs for result in llm.generate(prompts, params, use_tqdm=False)]


def shapes(answer):
    """Rows and columns of codes of an answer's pictures; none of them is partial."""
    assert not any(picture.partial for picture in answer.multimodal)
    return [(picture.height // CELL, picture.width // CELL) for picture in answer.multimodal]


def test_a_random_model_gives_a_picture_in_a_hundred_of_a_hundred_runs(painter):
    """At temperature 1; unguided, hardly any of its answers is one that can be read at all."""
    preempted = []
    scheduler = painter.llm_engine.engine_core.engine_core.scheduler
    with pytest.MonkeyPatch.context() as patch:
        preempt = scheduler._preempt_request
        patch.setattr(
            scheduler, "_preempt_request", lambda *args, **kwargs: (preempted.append(1), preempt(*args, **kwargs))
        )
        answers = generate(painter, [guided(grid=(4, 5))] * 100, "draw a cat")
    assert [shapes(answer) for (answer,) in answers] == [[(4, 5)]] * 100
    assert preempted, "requests are resumed among these"
    assert {(answer.finish_reason, answer.text, len(answer.token_ids)) for (answer,) in answers} == {("stop", "", 27)}
    assert len({tuple(answer.token_ids) for (answer,) in answers}) == 100
    free = painter.generate(["draw"] * 100, SamplingParams(max_tokens=60), use_tqdm=False)
    assert sum(getattr(one, "error", None) is None and bool(one.outputs[0].multimodal) for one in free) < 10


def test_all_kinds_of_requests_in_one_batch(painter):
    """Each gets what it asked: guided ones of several sizes, several answers, text, and free ones, as if alone."""
    text = SamplingParams(max_tokens=20, seed=3, allowed_token_ids=list(range(256)))
    kinds = [guided(grid=(2, 3)), text, guided(grid=(3, 2), n=3), guided("mixed", seed=1), guided()]
    many = generate(painter, kinds * 6)
    alone = generate(painter, [text])[0][0]
    for index in range(0, len(many), len(kinds)):
        pictures, words, several, mixed, any_size = many[index : index + len(kinds)]
        assert shapes(pictures[0]) == [(2, 3)]
        assert [shapes(answer) for answer in several] == [[(3, 2)]] * 3
        assert words[0].text == alone.text
        assert all(rows and columns for rows, columns in shapes(mixed[0]))
        assert len(shapes(any_size[0])) == 1
    followed, on_v2 = requests_of(painter)
    assert on_v2 or not followed, "on Model Runner V2 they stay until their slot is taken again"


def requests_of(llm):
    """What the logits processor knows of requests, once the engine has made a step without them."""
    generate(llm, [SamplingParams(max_tokens=1)])
    runner = runner_of(llm)
    on_v2 = llm.llm_engine.vllm_config.use_v2_model_runner
    processors = runner.sampler.logits_processors if on_v2 else runner.input_batch.logitsprocs.all
    name = "GuidedOnV2" if on_v2 else "GuidedOnV1"
    (processor,) = [one for one in processors if type(one).__name__ == name]
    return processor._requests, on_v2


def test_text_may_stand_around_media(painter):
    """With ``output="mixed"``: pictures come where the model begins one, and are whole; there is text, too."""
    likely = {"logit_bias": {259: 4.0}, "max_tokens": 200, "ignore_eos": True}
    (answers,) = generate(painter, [guided("mixed", grid=(2, 2), n=4, **likely)])
    assert {shape for answer in answers for shape in shapes(answer)} == {(2, 2)}
    assert all(answer.text for answer in answers)


@pytest.mark.parametrize("room", [3, 4, 7, 20])
def test_a_picture_of_any_size_is_closed_before_the_tokens_end(painter, room):
    """The model decides how large it is, within what the answer may have."""
    answers = generate(painter, [guided(max_tokens=room + 1)] * 8)
    assert [len(shapes(answer)) for (answer,) in answers] == [1] * 8
    assert all(END in answer.token_ids[-2:] for (answer,) in answers)


@pytest.mark.parametrize(
    "sampling", [{"min_tokens": 50}, {"allowed_token_ids": [65]}, {"ignore_eos": True}, {"temperature": 0.0}]
)
def test_the_layout_wins_over_other_limits(painter, sampling):
    """What else forbids tokens holds as long as one is left that fits."""
    ((answer,),) = generate(painter, [guided(grid=(2, 2), **sampling)])
    assert shapes(answer) == [(2, 2)]


def test_sounds_are_of_whole_frames(singer):
    """Each code in its slot, the end only behind a frame."""
    answers = generate(singer, [guided(max_tokens=most) for most in range(6, 46)])
    for (answer,) in answers:
        (sound,) = answer.multimodal
        assert not sound.partial
        inside = [token for token in answer.token_ids if token >= FIRST]
        assert not len(inside) % 4
        assert [(token - FIRST) // AUDIO_LAYOUT["size"] for token in inside] == [0, 1, 2, 3] * (len(inside) // 4)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            {"grid": (9, 9)},
            "a whole picture takes at least 92 tokens, but the answer may have only 60; raise max_tokens",
        ),
        ({"max_tokens": 3}, "takes at least 4 tokens, but the answer may have only 3"),
        ({"stop_token_ids": [FIRST + 2]}, f"cut off by the stop token {FIRST + 2}, which is a media token"),
        ({"output": None, "grid": (2, 2)}, 'grid needs output="media" or "mixed"'),
        ({"extra_args": {KEY: {"budget": 1}}}, f"{KEY} is reserved for the engine"),
        ({"extra_args": {KEY: 7}, "output": None}, f"{KEY} is reserved for the engine"),
    ],
)
def test_what_cannot_be_is_refused(painter, asked, said):
    """Before the engine gets the request; nothing is left of it."""
    with pytest.raises(OptionError, match=said):
        generate(painter, [guided(**asked)])
    assert not painter.llm_engine.has_unfinished_requests()


def test_a_guide_that_is_wrong_ends_nobody(painter, caplog):
    """Should one reach the worker all the same, the request is answered unguided."""
    from vllm_mmout.wings.tokens.guided.request_guides import tracker_of

    for wrong in ({"budget": 1}, 7, {"layout": "{}", "alone": True, "opened": False, "budget": 5}):
        assert tracker_of(SamplingParams(extra_args={KEY: wrong})) is None
    assert "cannot be guided" in caplog.text
    assert IMAGE_LAYOUT["first"] > EOS
