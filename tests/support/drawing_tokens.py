"""A logits processor by which small random models write media: the layout is what the prompt asks, codes are free.

What stands in the prompt says how: ``ROWSxCOLUMNS`` behind the token PAD a picture, else a sound with a frame for each
token of the prompt. The word "nothing" ends the answer at once, "broken" puts a row's end where none belongs, "spoiled"
does so in the middle of a sound, "slow" takes its time over each token, "held" takes a second over each token from
`HELD` on, until the file `LEAVE` exists. A request with a script, see scripted_tokens, has these tokens.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import torch
from scripted_tokens import Script, hold_back
from token_models import AUDIO_CODES, BEGIN, END, EOS, FIRST, IMAGE_CODES, PAD, ROW_END
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

SLOW_S = 0.05
HELD = 41
"""Place of the first token that a held answer takes a second over."""
SPOILED = HELD + 40
"""Place of the wrong token of a spoiled sound. If it is held too, it has sent sound for many seconds before."""
LEAVE = "drawn.go"
"""File in the folder of ``MMOUT_TEST_HOLDS``."""


class Drawing(AdapterLogitsProcessor):
    """Leaves each request the tokens that may come next."""

    @classmethod
    def validate_params(cls, params):
        """Any."""

    def is_argmax_invariant(self):
        """It is not."""
        return False

    def new_req_logits_processor(self, params):
        """The same for all but those with a script."""
        said = params.extra_args or {}
        return Script(said) if "script" in said else _drawn


def _drawn(prompt_ids, output_ids, logits):
    text = "".join(chr(token + 33) if token < 94 else "|" if token == PAD else " " for token in prompt_ids)
    if "slow" in text:
        time.sleep(SLOW_S)
    if "held" in text and len(output_ids) >= HELD:
        hold_back(Path(os.environ["MMOUT_TEST_HOLDS"], LEAVE))
    allowed = _next(text, len(prompt_ids), len(output_ids))
    kept = logits[allowed].clone()
    logits = torch.full_like(logits, float("-inf"))
    logits[allowed] = kept
    return logits


def _next(text, length, place):
    if "nothing" in text:
        return [EOS]
    size = re.search(r"\|(\d+)x(\d+)", text)
    if size is None:
        return [ROW_END] if "spoiled" in text and place == SPOILED else _of_sound(length, place)
    rows, columns = int(size[1]), int(size[2])
    if "broken" in text and place == 1:
        return [ROW_END]
    row, column = divmod(place, columns + 1)
    if row >= rows:
        return [END] if place == rows * (columns + 1) else [EOS]
    return list(range(FIRST, FIRST + IMAGE_CODES)) if column < columns else [ROW_END]


def _of_sound(frames, place):
    if place == 0:
        return [BEGIN]
    if place > 4 * frames:
        return [END] if place == 4 * frames + 1 else [EOS]
    first = FIRST + (place - 1) % 4 * AUDIO_CODES
    return list(range(first, first + AUDIO_CODES))
