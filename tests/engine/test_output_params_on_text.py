"""OutputParams given to a text model: refused by vLLM itself, since nothing of ours runs on such an engine."""

from __future__ import annotations

import pytest

from scripts import answer_of

pytestmark = [pytest.mark.engine, pytest.mark.slow]

SCRIPT = """
import json, sys
from engine_scripts import SMALL, make_llama
from vllm import LLM, SamplingParams
from vllm_mmout import OutputParams

llm = LLM(make_llama(sys.argv[1]), max_model_len=128, **SMALL)
core, sent = llm.llm_engine.engine_core, []
add_request = core.add_request
core.add_request = lambda request: (sent.append(request), add_request(request))
refusals = []
for prompts, params in [("w1 w2", OutputParams()), (["w1", "w2"], [SamplingParams(max_tokens=2), OutputParams()])]:
    try:
        llm.generate(prompts, params, use_tqdm=False)
    except TypeError as error:
        refusals.append(str(error))
refused, left = len(sent), llm.llm_engine.get_num_unfinished_requests()
(text,) = llm.generate("w1 w2", SamplingParams(max_tokens=3, ignore_eos=True), use_tqdm=False)
answer = {"refusals": refusals, "sent": refused, "left": left, "tokens": len(text.outputs[0].token_ids)}
print("answer:", json.dumps(answer))
"""


def test_vllm_says_which_params_it_takes(tmp_path):
    """Alone and in a list it is a TypeError that names both classes; nothing is left over, and text goes on."""
    answer = answer_of("-c", SCRIPT, tmp_path / "llama", VLLM_ENABLE_V1_MULTIPROCESSING="0")
    refusal = "params must be either SamplingParams or PoolingParams, but got OutputParams"
    assert answer == {
        "refusals": [refusal, refusal],
        "sent": 1,  # the first of the list, which was right; vLLM aborts it
        "left": 0,
        "tokens": 3,
    }
