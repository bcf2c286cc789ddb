"""Requests of one list that fail or sleep beside others, through ``LLM``."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from processors_for_tests import RELEASE
from scene_ends import settings
from water_oracle import bright, echo, leftovers, scene

from vllm_mmout import MultimodalRequestOutput, OutputParams
from vllm_mmout.errors import DecodeError, InputError, OptionError, ReduceError

pytestmark = pytest.mark.engine

UNREADABLE = r"UnreadableError: \(its message cannot be read: ZeroDivisionError\)"

FAILURES = {
    "ReduceRaisesItsName": (ReduceError, "ReduceRaisesItsName.reduce failed.*ValueError: no reduce for {name}$"),
    "ReduceReturnsList": (ReduceError, "tensor or a dict of tensors, got list"),
    "ReduceReturnsOneRow": (ReduceError, "keep the requests on axis 0"),
    "ReduceReturnsSparse": (ReduceError, "sparse"),
    "ReduceReturnsQuantised": (ReduceError, "qint8|quanti"),
    "DecodeRaisesItsName": (DecodeError, "LookupError: no decode for {name}$"),
    "ReduceRaisesUnreadable": (ReduceError, rf"ReduceRaisesUnreadable.reduce failed.*{UNREADABLE}"),
    "DecodeRaisesUnreadable": (DecodeError, rf"DecodeRaisesUnreadable \(.*\) failed: {UNREADABLE}"),
    "AssembleRaisesUnreadable": (DecodeError, rf"AssembleRaisesUnreadable \(.*\) failed: {UNREADABLE}"),
    "DecodeExits": (DecodeError, "SystemExit: 3"),
    "ReduceInterrupts": (ReduceError, "KeyboardInterrupt: no user's"),
    "DecodeInterrupts": (DecodeError, "KeyboardInterrupt: no user's"),
    "DecodeReturnsNone": (DecodeError, "returned None"),
    "DecodeHangs": (DecodeError, "limit of 2 s.*decode_timeout_s"),
}
"""What goes wrong after the engine, and what its caller is told."""

INPUTS_THAT_ARE_REFUSED = {
    "bands": (np.zeros((5, 8, 8), np.uint16), "the input has 5 bands.*takes 6"),
    "nan": (np.full((6, 8, 8), np.nan, np.float32), "all are NaN"),
    "size": (np.zeros((6, 1, 1025), np.uint16), "1 to 1024 either way"),
    "dtype": (np.zeros((6, 8, 8), np.int64), "dtype is int64"),
    "file": ("no such file.tif", "no such file.tif"),
    "form": (object(), "got object"),
}
"""What goes wrong before the engine."""


@pytest.fixture(params=["llm", pytest.param("mp_llm", marks=pytest.mark.slow)])
def engine(request):
    """An ``LLM``, in this process and in processes of its own."""
    llm = request.getfixturevalue(request.param)
    yield llm
    assert_idle(llm)


@pytest.fixture(autouse=True)
def decoders_go():
    """Decoders that wait for leave have it."""
    RELEASE.set()


def assert_idle(llm):
    """Nothing is left of any request."""
    assert leftovers(llm.llm_engine.output_processor) == {}
    assert not llm.llm_engine.has_unfinished_requests()


def assert_failed(result, kind, match):
    """A failed place: its error is the exception, and reading its outputs raises that."""
    assert isinstance(result, MultimodalRequestOutput)
    assert result.finished
    assert isinstance(result.error, kind)
    with pytest.raises(kind, match=match) as raised:
        _ = result.outputs
    assert raised.value is result.error


@pytest.mark.slow
@pytest.mark.timing
def test_sixty_four_of_a_list_each_get_their_own(mp_llm):
    """Each place of a long list holds its own right answer or its own error; nothing is left; the engine answers."""
    kinds = ["ReduceRaisesItsName", "DecodeRaisesItsName", "DecodeSleeps", "DecodeReturnsNone", "refused", "Echo"]
    processors = [kinds[number % len(kinds)] for number in range(64)]
    processors[40] = processors[41] = "DecodeHangs"
    inputs = [scene(number, 16 + number % 3, 16 + number % 5) for number in range(64)]
    expected = [echo(data) for data in inputs]
    inputs = [data[:5] if kind == "refused" else data for kind, data in zip(processors, inputs, strict=True)]
    params = [
        OutputParams(processor="Echo" if kind == "refused" else kind, nodata=float(-1 - number))
        for number, kind in enumerate(processors)
    ]

    with settings(mp_llm.llm_engine.output_processor, decode_timeout_s=2.0):
        results = mp_llm.generate(inputs, params, use_tqdm=False)

    assert min(Counter(processors).values()) >= 2
    for number, (kind, result) in enumerate(zip(processors, results, strict=True)):
        if kind in ("Echo", "DecodeSleeps"):
            assert result.error is None
            assert result.outputs == expected[number]
        elif kind == "refused":
            assert_failed(result, InputError, "the input has 5 bands")
        else:
            error, match = FAILURES[kind]
            assert_failed(result, error, match.format(name=-1 - number))
    assert_idle(mp_llm)
    assert mp_llm.generate(scene(99), OutputParams(processor="Echo"), use_tqdm=False)[0].outputs == echo(scene(99))


@pytest.mark.parametrize("processor", [name for name in FAILURES if name != "DecodeHangs"])
def test_a_failure_in_a_list_is_in_its_place(engine, processor):
    """The two beside a failing request have their answers."""
    kind, match = FAILURES[processor]
    picks = ["Echo", processor, "Echo"]
    results = engine.generate(
        [scene(1), scene(2), scene(3)],
        [OutputParams(processor=pick, nodata=-7) for pick in picks],
        use_tqdm=False,
    )

    assert [results[0].outputs, results[2].outputs] == [echo(scene(1)), echo(scene(3))]
    assert_failed(results[1], kind, match.format(name=-7))
    assert processor in repr(results[1])


@pytest.mark.parametrize("processor", [name for name in FAILURES if name != "DecodeHangs"])
def test_a_single_input_raises_its_failure(engine, processor):
    """Without a list there is no place to hold the error: it is raised."""
    kind, match = FAILURES[processor]
    with pytest.raises(kind, match=match.format(name=-7)):
        engine.generate(scene(1), OutputParams(processor=processor, nodata=-7), use_tqdm=False)


def test_a_list_of_one_holds_its_failure(engine):
    """A list of one is a list: nothing is raised before the outputs are read."""
    (result,) = engine.generate([scene(1)], OutputParams(processor="DecodeRaises"), use_tqdm=False)

    assert_failed(result, DecodeError, "no decode today")
    assert isinstance(result.error.__cause__, LookupError)


@pytest.mark.parametrize("fault", INPUTS_THAT_ARE_REFUSED)
def test_a_refused_input_is_raised_alone_and_held_in_a_list(llm, fault):
    """What cannot enter the engine is an error of its own place; the others run."""
    data, match = INPUTS_THAT_ARE_REFUSED[fault]
    params = OutputParams(processor="Echo")
    with pytest.raises(InputError, match=match):
        llm.generate(data, params, use_tqdm=False)

    results = llm.generate([scene(1), data, scene(2)], params, use_tqdm=False)
    assert [results[0].outputs, results[2].outputs] == [echo(scene(1)), echo(scene(2))]
    assert_failed(results[1], InputError, match)
    assert_idle(llm)


def test_wrong_params_are_raised_before_anything_runs(engine):
    """An option that the model has not is the call's error, not a place's."""
    with pytest.raises(OptionError, match="nobody"):
        engine.generate([scene(1), scene(2)], [OutputParams(), OutputParams(processor="nobody")], use_tqdm=False)
    with pytest.raises(OptionError, match="2 inputs and 1 params"):
        engine.generate([scene(1), scene(2)], [OutputParams()], use_tqdm=False)


def test_of_equal_requests_reduced_together_only_the_bad_one_fails(llm, monkeypatch):
    """Where reduce raises for a whole group, the worker finds the one request whose fault it is."""
    worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    processor = worker.get_model().pooler.processors["ReduceRaisesForBright"]
    groups, reduce = [], processor.reduce

    def counted(output, params):
        groups.append(output.shape[0])
        return reduce(output, params)

    monkeypatch.setattr(processor, "reduce", counted)
    inputs = [scene(1), bright(2), scene(3), scene(4)]
    results = llm.generate(inputs, OutputParams(processor="ReduceRaisesForBright"), use_tqdm=False)

    assert groups == [4, 1, 1, 1, 1]
    check_bright(results, inputs, 1)
    assert_idle(llm)


@pytest.mark.slow
def test_of_equal_requests_in_another_process_only_the_bad_one_fails(mp_llm):
    """The same over the wire, with three bad ones in a list of twenty."""
    inputs = [bright(number) if number in (3, 4, 17) else scene(number) for number in range(20)]
    results = mp_llm.generate(inputs, OutputParams(processor="ReduceRaisesForBright"), use_tqdm=False)

    check_bright(results, inputs, 3, 4, 17)
    assert_idle(mp_llm)


def check_bright(results, inputs, *bad):
    """The bad places hold their error, the others their own answer."""
    for number, (result, data) in enumerate(zip(results, inputs, strict=True)):
        if number in bad:
            assert_failed(result, ReduceError, "ValueError: too bright")
        else:
            assert result.outputs == echo(data)


def test_an_error_of_one_pick_is_an_error_of_its_request(engine):
    """With several picks one failure is the request's; the request beside it has all its picks."""
    picks = [("Echo", "ReduceRaises"), ("Echo", "DecodeRaises"), ("tensor", "Echo")]
    results = engine.generate(
        [scene(1), scene(2), scene(3)], [OutputParams(processor=pick) for pick in picks], use_tqdm=False
    )

    assert_failed(results[0], ReduceError, "no reduce today")
    assert_failed(results[1], DecodeError, "no decode today")
    assert list(results[2].outputs) == ["tensor", "Echo"]
    assert results[2].outputs["Echo"] == echo(scene(3))
