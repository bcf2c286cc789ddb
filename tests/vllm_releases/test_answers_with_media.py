"""Several answers to one request, each of which is held until its media are decoded, on one vLLM."""

from __future__ import annotations

from copy import copy

import hand_fed
import pytest
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine import EngineCoreOutput, FinishReason
from vllm.v1.engine.output_processor import OutputProcessor
from vllm.v1.engine.parallel_sampling import ParentRequest

from vllm_mmout.engine.binding import rebase
from vllm_mmout.wings.tokens.engine.routed import Answer, TokenOutputProcessor, TokenRequestState

pytestmark = pytest.mark.engine


class Stream:
    """Stands for the tokens and the decoder of one answer, whose picture is decoded when a test says so."""

    jobs = ("picture",)
    error = growing = None
    decoded = False

    def __init__(self, picture):
        self.picture = picture

    def finish(self, tokens):
        """Nothing is left to parse."""

    def objects(self):
        return [self.picture]


def held_answers(kind):
    """Return an output processor and the two answers to a request, which the engine has finished."""
    processor = OutputProcessor(None, log_stats=False)
    rebase(processor, TokenOutputProcessor)
    processor.pending = {}
    processor.begin_holding()
    request = hand_fed.request("a", SamplingParams(n=2, output_kind=kind, detokenize=False))
    parent = ParentRequest(request)
    for index in range(2):
        child = copy(request)
        child.request_id, child.sampling_params = parent.get_child_info(index)
        OutputProcessor.add_request(processor, child, None, parent, index)
        rebase(processor.request_states[child.request_id], TokenRequestState)
        processor.request_states[child.request_id].mmout = Answer(Stream(f"picture {index}"), processor)
    answers = list(processor.request_states.values())
    ends = [EngineCoreOutput(answer.request_id, [3], finish_reason=FinishReason.STOP) for answer in answers]
    assert processor.process_outputs(ends).request_outputs == []
    return processor, answers


def decoded(processor, answers):
    """Have the pictures of answers be decoded one after the other, and return the results."""
    for answer in answers:
        answer.mmout.stream.decoded = True
        processor._settled(answer.request_id, None)
    return processor.take_ready()


def test_each_answer_of_a_stream_is_delivered():
    """The last delta of each answer has its picture, and the last of all finishes the request."""
    processor, answers = held_answers(RequestOutputKind.DELTA)
    results = decoded(processor, reversed(answers))
    assert [result.outputs[0].multimodal for result in results] == [["picture 1"], ["picture 0"]]
    assert [result.finished for result in results] == [False, True]
    assert not processor.parent_requests


def test_a_result_waits_for_all_its_answers():
    """Without a stream there is one result, after the last picture, with all answers."""
    processor, answers = held_answers(RequestOutputKind.FINAL_ONLY)
    assert decoded(processor, answers[1:]) == []
    (result,) = decoded(processor, answers[:1])
    assert [output.multimodal for output in result.outputs] == [["picture 0"], ["picture 1"]]
    assert result.finished
    assert not processor.parent_requests
