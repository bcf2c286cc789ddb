"""A model that generates from pictures, with the decorators of docs/inputs.md, against transformers."""

from __future__ import annotations

import os
import sys
import textwrap
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from model_folders import engine_here
from pages import all_blocks
from PIL import Image
from small_llava import generated, write_llava

from scripts import answer_of
from vllm_mmout import MMOutError

pytestmark = pytest.mark.engine
SMALL = {"max_num_batched_tokens": 12, "max_num_seqs": 4, "block_size": 32, "dtype": "float32"}
"""A picture has 16 tokens, so that each is embedded in two steps at least."""


def picture(seed):
    """Return a random picture whose size is not the model's input size."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (20, 24, 3), np.uint8))


def example():
    """Return the page's script of a model that generates."""
    (block,) = [block.text for block in all_blocks("python") if block.page == "inputs.md" and "MyLlava" in block.text]
    return block


@pytest.fixture(scope="module")
def llava(tmp_path_factory):
    """Return the page's engine, made by the page's own lines, and the model and processor of transformers."""
    folder = tmp_path_factory.mktemp("llava")
    model, processor = write_llava(folder / "my-llava", "MyLlava")
    picture(0).save(folder / "picture.png")
    script = example().replace("from vllm import LLM, ModelRegistry", "from vllm import ModelRegistry")
    names = {"__name__": "__main__", "LLM": partial(engine_here, **SMALL)}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        script = script.replace('"my-llava"', f'"{folder}/my-llava"')  # another engine has another working folder
        exec(script, names)  # noqa: S102 - the page is our own
    yield names["llm"], model, processor
    from vllm import ModelRegistry

    ModelRegistry.models.pop("MyLlava", None)


CASES = [
    ("what is this ?", []),
    ("<image> what is this ?", [1]),
    ("<image> what is this ?", [2]),
    ("w1 <image> w2 and <image> ?", [1, 2]),
    ("w1 <image> w2 and <image> ?", [2, 1]),
    ("<image> <image> what ?", [3, 3]),
    ("w7 w8 w9", []),
]


def asked(llm, cases):
    """Return what the engine generates greedily for prompts with pictures, in one batch."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    prompts = [
        {"prompt": prompt, **({"multi_modal_data": {"image": [picture(seed) for seed in seeds]}} if seeds else {})}
        for prompt, seeds in cases
    ]
    return llm.generate(prompts, params, use_tqdm=False)


def tokens(results):
    return [list(result.outputs[0].token_ids) for result in results]


def expected(llava, cases):
    """Return the tokens that transformers generates for each prompt, which all differ."""
    _, model, processor = llava
    given = [generated(model, processor, prompt, [picture(seed) for seed in seeds]) for prompt, seeds in cases]
    assert len(set(map(tuple, given))) == len(cases)
    return given


def test_it_generates_what_transformers_does(llava):
    """Prompts with no, one or two pictures, also adjacent ones, give the same tokens in a batch and alone."""
    wanted = expected(llava, CASES)
    assert tokens(asked(llava[0], CASES)) == wanted
    assert [tokens(asked(llava[0], [case]))[0] for case in CASES[1:4]] == wanted[1:4]


def test_a_request_with_an_empty_list_of_pictures_is_text(llava):
    """A client may send an empty list."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    prompt = {"prompt": CASES[0][0], "multi_modal_data": {"image": []}}
    assert tokens(llava[0].generate(prompt, params, use_tqdm=False)) == expected(llava, CASES[:1])


def test_the_prefix_cache_tells_pictures_apart(llava):
    """One long text with two different pictures gives two answers, also when repeated from the cache."""
    text = " ".join(["<image>", *(f"w{number}" for number in range(30))])
    cases = [(text, [4]), (text, [5])]
    wanted = expected(llava, cases)
    results = [asked(llava[0], cases) for _ in range(2)]
    assert [tokens(result) for result in results] == [wanted, wanted]
    assert [[one.num_cached_tokens for one in result] for result in results] == [[0, 0], [32, 32]]


@pytest.mark.parametrize(
    ("prompt", "extra", "says"),
    [
        ("<image> <image> ?", {}, r"has 2 image tokens \(id 3\) for one picture"),
        ("what ?", {}, "has no image token"),
        ("<image> ?", {"mm_processor_kwargs": {"size": 5}}, r"mm_processor_kwargs \(size\) cannot be used"),
        (
            "<image> ?",
            {"multi_modal_data": {"image": [None]}, "multi_modal_uuids": {"image": ["a"]}},
            "the picture itself",
        ),
    ],
)
def test_what_cannot_be_told_is_the_clients_error(llava, prompt, extra, says):
    """The request is refused before it reaches the engine, with an error that vLLM counts as the client's."""
    from vllm.exceptions import VLLMValidationError

    data = {"prompt": prompt, "multi_modal_data": {"image": picture(6)}, **extra}
    with pytest.raises(MMOutError, match=says) as caught:
        llava[0].generate(data, use_tqdm=False)
    assert isinstance(caught.value, VLLMValidationError)
    assert len(tokens(asked(llava[0], CASES[:1]))[0]) == 8


@pytest.mark.slow
def test_pictures_reach_an_engine_in_other_processes(llava, tmp_path):
    """Each prompt of the page's script runs twice. The second time vLLM sends only the hashes of cached pictures."""
    asking = f"""
import json
from model_folders import ENGINE
from test_generating_guide import CASES, SMALL, asked, tokens

llm = LLM({llava[0].llm_engine.model_config.model!r}, max_model_len=128, **ENGINE, **SMALL)
print("answer:", json.dumps([tokens(asked(llm, CASES[:4])) for _ in range(2)]))
"""
    functions, _, _ = example().partition("llm = LLM(")
    (tmp_path / "script.py").write_text(f"{functions}\nif __name__ == '__main__':{textwrap.indent(asking, '    ')}")
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    assert answer_of("script.py", cwd=tmp_path, PYTHONPATH=path) == [expected(llava, CASES[:4])] * 2
