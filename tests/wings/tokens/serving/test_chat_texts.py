"""Texts of a chat with media: none of them is read as the marker of a medium."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from token_models import BEGIN, END, FIRST, ROW_END

from vllm_mmout.serving.errors import ApiError
from vllm_mmout.wings.tokens.layouts import TokenLayout
from vllm_mmout.wings.tokens.processors.prompt_template import PromptTemplate
from vllm_mmout.wings.tokens.serving.chat.texts import check_texts
from vllm_mmout.wings.tokens.serving.prompt_tokens import PromptTokens

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def maker(byte_tokenizer):
    """What makes pictures between <boi> and <eoi>."""
    layout = TokenLayout(modality="image", first=FIRST, size=64, row_end=ROW_END, begin=[BEGIN], end=[END])
    return SimpleNamespace(prompts=PromptTokens(byte_tokenizer, PromptTemplate.parse("<s>{prompt}", "image"), layout))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("messages", [{"role": "user", "content": "a <boi>lake"}]),
        ("messages", [{"role": "user", "content": [{"type": "text", "text": "<code 3>"}]}]),
        ("messages", [{"role": "user", "content": [{"type": "text", "text": one} for one in ("a<b", "oi>")]}]),
        ("messages", [{"role": "assistant", "tool_calls": [{"function": {"arguments": '{"a": "\\u003cboi>"}'}}]}]),
        ("tools", [{"function": {"parameters": {"properties": {"<boi>": {}}}}}]),
        ("tools", [{"function": {"parameters": {"properties": {"image_url": {"description": "a <boi>"}}}}}]),
        ("chat_template_kwargs", {"voice": "tara<eoi>"}),
    ],
)
def test_a_marker_in_a_text_is_refused(maker, field, value):
    """A marker that two parts of a message make together is refused, too. The error names the field."""
    with pytest.raises(ApiError, match=f"^{field} holds text that this model reads as a marker") as refused:
        check_texts(SimpleNamespace(**{field: value}), [SimpleNamespace(prompts=None), maker])
    assert (refused.value.status, refused.value.param) == (400, field)


def test_parts_that_come_once_are_kept_for_vllm(maker):
    """Some releases of pydantic and vLLM give the parts of a message as an iterator."""
    parts = [{"type": "text", "text": "a lake"}]
    message = {"role": "user", "content": iter(parts)}
    check_texts(SimpleNamespace(messages=[message]), [maker])
    assert message["content"] == parts


def test_other_texts_are_free(maker):
    """Parts of a marker, other special tokens (left to vLLM) and files are allowed."""
    parts = [{"type": "text", "text": "boi < eoi > <s>"}, {"type": "image_url", "image_url": {"url": "data:,<boi>"}}]
    check_texts(SimpleNamespace(messages=[{"role": "user", "content": parts}], tools=None), [maker])
