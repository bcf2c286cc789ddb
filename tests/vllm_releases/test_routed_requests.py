"""A bound ``LLMEngine`` of the release: what the core gives is decoded, handed on raw, or left to vLLM as text."""

from __future__ import annotations

import hand_fed
import pytest
import torch
from hand_fed import Waits, add, answered, drain, ended, llm_engine, marked, packed, unmarked
from vllm.outputs import PoolingRequestOutput, RequestOutput
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest
from vllm.v1.engine.output_processor import OutputProcessor, RequestState

from vllm_mmout.engine import wire
from vllm_mmout.engine.request.output_router import RoutedOutputProcessor, RoutedRequestState
from vllm_mmout.engine.request_output import MultimodalRequestOutput
from vllm_mmout.errors import AbortedError, DecodeError, MMOutError, ReduceError, RequestError

pytestmark = pytest.mark.engine


@pytest.fixture
def engine():
    """A bound engine without requests, as it must be afterwards."""
    engine = llm_engine()
    yield engine
    assert engine.output_processor.get_num_unfinished_requests() == 0
    assert not engine.output_processor.external_req_ids
    engine.output_processor.close()


@pytest.fixture
def hold():
    """Decodes of the processor "waits" are held back until ``set()``."""
    Waits.leave.clear()
    yield Waits.leave
    Waits.leave.set()


def test_a_marked_request_is_decoded(engine):
    """What the worker packed comes back decoded, under the name that the request has outside."""
    add(engine, "a", marked())
    engine.engine_core.feed(packed("a", [1.5, 2.5]))
    (result,) = drain(engine).values()
    assert type(result) is MultimodalRequestOutput
    assert (result.request_id, result.outputs, result.error, result.finished) == ("a", [1.5, 2.5], None, True)


def test_the_mark_travels_on_the_wire():
    """The mark of a request arrives at the engine core as it was set."""
    from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

    sent = MsgpackEncoder().encode(hand_fed.request("a", marked("fails")))
    assert wire.read(MsgpackDecoder(EngineCoreRequest).decode(sent).pooling_params).processor == "fails"


def test_an_unmarked_request_gets_its_tensor(engine):
    """A pooling request without a mark, in the same step, gets vLLM's own output with the raw tensor."""
    raw = torch.arange(400.0).reshape(20, 20)
    add(engine, "a", marked())
    add(engine, "b", unmarked())
    engine.engine_core.feed(answered("b", raw), packed("a", [1]))
    results = drain(engine)
    assert type(results["b"]) is PoolingRequestOutput
    assert torch.equal(results["b"].outputs.data, raw)
    assert results["a"].outputs == [1]


@pytest.mark.parametrize("params", [marked(), unmarked()], ids=["marked", "unmarked"])
def test_a_stream_interval_changes_nothing(params):
    """With a stream interval above 1, on which vLLM's assertion fails to 0.32, the result comes all the same."""
    engine = llm_engine(stream_interval=4)
    add(engine, "a", params)
    engine.engine_core.feed(packed("a", [3]))
    assert drain(engine)["a"].finished
    engine.output_processor.close()


@pytest.mark.parametrize(("reason", "kind"), [("ABORT", AbortedError), ("ERROR", RequestError)])
def test_an_end_without_a_tensor(engine, reason, kind):
    """A request that the core ends without a tensor fails alone; an unmarked one gets an empty tensor."""
    for name, params in {"a": marked(), "b": unmarked(), "c": marked()}.items():
        add(engine, name, params)
    engine.engine_core.feed(ended("a", reason), ended("b", reason), packed("c", [3]))
    results = drain(engine)
    assert type(results["a"].error) is kind
    with pytest.raises(kind):
        _ = results["a"].outputs
    assert results["b"].outputs.data.numel() == 0
    assert results["c"].outputs == [3]


@pytest.mark.parametrize("tensor", [None, torch.ones(2)], ids=["without a tensor", "with one"])
def test_a_step_without_an_end_gives_nothing(engine, tensor):
    """An output that does not end its request is passed over; without a tensor vLLM would make text of it."""
    add(engine, "a", marked())
    engine.engine_core.feed(EngineCoreOutput("a-internal", [], pooling_output=tensor))
    assert engine.step() == []
    assert not engine.output_processor.pending
    assert engine.output_processor.get_num_unfinished_requests() == 1
    engine.engine_core.feed(packed("a", [1]))
    assert drain(engine)["a"].outputs == [1]


def test_failures_stay_with_their_request(engine):
    """What raises in ``decode``, and what failed in the worker, is the error of that request and of no other."""
    for name, processor in {"a": "answer", "b": "fails", "c": "answer", "d": "answer"}.items():
        add(engine, name, marked(processor))
    failure = wire.pack_failure(wire.Failure("answer", "ValueError", "no reduce today"))
    engine.engine_core.feed(
        packed("a", [1]), packed("b", [2], "fails"), answered("c", failure), answered("d", torch.ones(3))
    )
    results = drain(engine)
    assert results["a"].outputs == [1]
    assert type(results["b"].error) is DecodeError
    assert str(results["b"].error.__cause__) == "no decode for [2]"
    assert type(results["c"].error) is ReduceError
    assert "no reduce today" in str(results["c"].error)
    assert "not a packed result" in str(results["d"].error)


def test_unfinished_requests_are_counted(engine, hold):
    """A request counts until it is delivered: in the core, being decoded, and decoded but not fetched."""
    router = engine.output_processor
    add(engine, "a", marked("waits"))
    add(engine, "b", marked())
    assert router.get_num_unfinished_requests() == 2
    engine.engine_core.feed(packed("a", [1], "waits"))
    assert engine.step() == []
    assert (len(router.request_states), list(router.pending)) == (1, ["a-internal"])
    assert router.get_num_unfinished_requests() == 2
    hold.set()
    engine.engine_core.feed(packed("b", [2]))
    assert {name: result.outputs for name, result in drain(engine).items()} == {"a": [1], "b": [2]}
    assert not router.has_unfinished_requests()


@pytest.mark.parametrize("internal", [True, False], ids=["internal", "external"])
def test_an_abort_cancels_a_pending_decode(engine, hold, internal):
    """An abort by either name ends a request that the core is done with; its result is never delivered."""
    add(engine, "a", marked("waits"))
    engine.engine_core.feed(packed("a", [1], "waits"))
    assert engine.step() == []
    engine.abort_request(["a-internal" if internal else "a"], internal=internal)
    assert not engine.output_processor.has_unfinished_requests()
    hold.set()
    add(engine, "b", marked())
    engine.engine_core.feed(packed("b", [2]))
    assert list(drain(engine)) == ["b"]


@pytest.mark.parametrize("internal", [True, False], ids=["internal", "external"])
def test_an_abort_reaches_the_core(engine, internal):
    """An abort of a request that the core still has is told to the core, and leaves the others."""
    add(engine, "a", marked())
    add(engine, "b", marked())
    engine.abort_request(["a-internal" if internal else "a"], internal=internal)
    assert engine.engine_core.aborted == ["a-internal"]
    engine.engine_core.feed(packed("a", [1]), packed("b", [2]))
    assert {name: result.outputs for name, result in drain(engine).items()} == {"b": [2]}


def test_refused_requests_leave_nothing(engine):
    """A wrong mark, and tokens for a model of raw tensors, are refused as a client's mistake before vLLM has them."""
    from vllm.exceptions import VLLMValidationError

    wrong = unmarked()
    wrong.extra_kwargs = {wire.KEY: {"no such option": 1}}
    with pytest.raises(MMOutError) as caught:
        add(engine, "a", wrong)
    assert isinstance(caught.value, VLLMValidationError)
    raw = llm_engine(binding=hand_fed.make_binding(raw_input=True))
    with pytest.raises(VLLMValidationError, match="multi_modal_data"):
        add(raw, "a", marked())
    assert raw.output_processor.get_num_unfinished_requests() == 0


def test_vllms_classes_stay_as_they_are():
    """Binding and serving change neither vLLM's classes nor an engine that is not bound."""
    before = {kind: dict(vars(kind)) for kind in (OutputProcessor, RequestState)}
    engine, plain = llm_engine(), OutputProcessor(None, log_stats=False)
    add(engine, "a", marked())
    plain.add_request(hand_fed.request("a", unmarked()), None)
    assert type(engine.output_processor) is RoutedOutputProcessor
    assert type(engine.output_processor.request_states["a-internal"]) is RoutedRequestState
    engine.engine_core.feed(packed("a", [1]))
    drain(engine)
    assert type(plain) is OutputProcessor
    assert type(plain.request_states["a-internal"]) is RequestState
    assert before == {kind: dict(vars(kind)) for kind in (OutputProcessor, RequestState)}
    engine.output_processor.close()


def words():
    """A tokenizer of ten words."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {f"w{number}": number for number in range(10)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="w0")))  # noqa: S106


@pytest.mark.parametrize("tokenizer", [None, words()], ids=["tokens", "text"])
def test_text_requests_are_left_to_vllm(tokenizer):
    """A text request on a bound engine gives, step by step, what vLLM's own output processor gives."""
    from vllm.sampling_params import SamplingParams

    params = SamplingParams(max_tokens=8, detokenize=tokenizer is not None)
    engine, plain = llm_engine(tokenizer=tokenizer), OutputProcessor(tokenizer, log_stats=False)
    add(engine, "a", params)
    plain.add_request(hand_fed.request("a", params), None)
    assert type(engine.output_processor.request_states["a-internal"]) is RequestState
    said = []
    for tokens, reason in (([3], None), ([4, 5], None), ([6], "LENGTH")):
        made = [
            EngineCoreOutput("a-internal", tokens) if reason is None else ended("a", reason, tokens) for _ in range(2)
        ]
        engine.engine_core.feed(made[0])
        (ours,), (theirs,) = engine.step(), plain.process_outputs([made[1]]).request_outputs
        assert type(ours) is RequestOutput
        assert repr(ours) == repr(theirs)
        said.append(ours.outputs[0])
    assert said[-1].token_ids == [3, 4, 5, 6]
    assert said[-1].text.split() == ([] if tokenizer is None else ["w3", "w4", "w5", "w6"])
    engine.output_processor.close()
