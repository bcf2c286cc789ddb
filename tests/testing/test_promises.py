from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="processors are given torch tensors")

import right_processors as right  # noqa: E402 - needs torch
import wrong_processors as wrong  # noqa: E402

from vllm_mmout import OutputParams  # noqa: E402
from vllm_mmout.testing import PROMISES, Case  # noqa: E402
from vllm_mmout.testing.case import BrokenPromiseError  # noqa: E402

pytestmark = pytest.mark.engine

GENERATOR = torch.Generator().manual_seed(0)
ORDINARY = torch.randn(3, 2, 4, 5, generator=GENERATOR)
SEVERAL = {"a": ORDINARY, "b": torch.arange(6).reshape(3, 2)}
TRAVELS = "what_reduce_returns_travels"
EVERYTHING = {promise.__name__ for promise in PROMISES}


def broken(make, outputs=ORDINARY, **options):
    """Name of each promise that is broken -> what is said of it."""
    found = {}
    for promise in PROMISES:
        try:
            promise(Case(make, outputs, **options))
        except BrokenPromiseError as error:
            found[promise.__name__] = str(error)
    return found


RIGHT = [
    (right.Right, ORDINARY, ()),
    (right.Right, ORDINARY.to(torch.bfloat16).float(), ()),
    (right.Right, ORDINARY.transpose(1, 3), ()),
    (right.Right, ORDINARY[:1].expand(3, 2, 4, 5), ()),
    (right.Right, torch.arange(5), ()),
    (right.Right, ORDINARY[:1], ()),
    (right.RightDict, SEVERAL, ()),
    (right.RightLazyDecoder, ORDINARY, ("_decoder",)),
    (right.RightLock, ORDINARY, ()),
    (right.RightRecord, ORDINARY, ()),
]


@pytest.mark.parametrize(("make", "outputs", "allow"), RIGHT)
def test_right_processors_break_nothing(make, outputs, allow):
    """Processors that keep all promises pass each of them, on one request, on several, on any layout."""
    assert broken(make, outputs, allow=allow) == {}


KEEPS = "keeps_nothing_of_a_request"
INPUTS = "leaves_its_inputs_alone"
BREAKS_ONE = [
    (wrong.KeepsParams, KEEPS, r"^reduce\(\) left something .*: self.last was not there and is tuple of 2"),
    (wrong.KeepsOnItsClass, KEEPS, r"^decode\(\) left something .*: KeepsOnItsClass.seen\['n'\] was .* and is "),
    (wrong.KeepsDeep, KEEPS, r"self.parts\[1\]\['inner'\]\[0\] was Random #\w+ and is Random #\w+"),
    (wrong.KeepsInItsModule, KEEPS, r"wrong_processors.CALLS was list of \d+ and is list of \d+"),
    (wrong.KeepsInADefault, KEEPS, r"default 1 of decode\(\) was list of \d+ and is list of \d+"),
    (wrong.KeepsInACache, KEEPS, r"KeepsInACache._known was a cache of \d+ and is a cache of \d+"),
    (right.RightLazyDecoder, KEEPS, r"self._decoder was not there and is dict of 1.*give allow=\[its name\]"),
    (wrong.WritesItsInput, INPUTS, r"^reduce\(\) wrote to its input.*the model's output\[0, 0, 0, 0\] is"),
    (wrong.WritesRaw, INPUTS, r"^decode\(\) wrote to raw, .*read-only: request 0.*raw\[0, 0, 0\] is"),
    (wrong.AssemblesAList, "assembles_one_part", r"what decode\(\) made: request 0, result is TensorOutput and list"),
    (wrong.AssemblesParts, "assembles_one_part", r"0, result.arrays\['output'\]\[0, 0, 0\] is .* \(40 of 40 differ\)"),
    (
        wrong.GivesUpTogether,
        "answers_bad_values",
        r"^request 0 being all nan changes those beside it: request 1, result",
    ),
    (wrong.RaisesForNan, "answers_bad_values", r"^request 0 broke decode\(\) where request 0 is all nan: ValueError"),
    (wrong.RaisesForEmpty, "answers_empty_axes", r"^request 0 broke decode\(\) where axis 2 has length 0: ValueError"),
    (wrong.Raises, "answers_or_refuses", r"^request 0 broke decode\(\): LookupError: no decode .*raise an MMOutError"),
]


@pytest.mark.parametrize(("make", "promise", "says"), BREAKS_ONE)
def test_a_mistake_breaks_its_own_promise(make, promise, says):
    """A processor with one mistake is caught by the promise that names it, and by no other that it keeps."""
    found = broken(make)
    expected = {promise}
    if make is wrong.Raises:  # it raises everywhere
        expected |= {"answers_bad_values", "answers_empty_axes"}
    assert set(found) == expected
    with pytest.raises(AssertionError, match=says):
        raise AssertionError(found[promise])


SAME = "is_deterministic"
GROUPED = "grouped_equals_single"
BREAKS_SEVERAL = [
    (wrong.Random, SAME, r"^decode\(\) gives something else in the same instance: request 0, result.arrays"),
    (wrong.RandomReduce, SAME, r"^reduce\(\) gives something else in the same instance: request 0, result\["),
    (wrong.Numbered, SAME, r"^decode\(\) gives something else in another instance: request 0, result\[0\] is"),
    (wrong.GlobalCounter, SAME, r"^decode\(\) gives something else in the same .*result\['number'\] is"),
    (wrong.SoftmaxOverRequests, GROUPED, r"^reduce\(\) of 3 requests together differs from each alone: request 0"),
    (wrong.WeighsByPlace, GROUPED, r"^reduce\(\) of 3 requests .* each alone: request 1, result\[0, 0, 0\]"),
    (wrong.DecodesToNone, "answers_or_refuses", r"^request 0 got None; decode\(\) and assemble\(\) must return"),
]


@pytest.mark.parametrize(("make", "promise", "says"), BREAKS_SEVERAL)
def test_a_mistake_is_named_by_the_first_promise_that_it_breaks(make, promise, says):
    """Mistakes with many consequences are named by the promise that is checked first, before the consequences."""
    found = broken(make)
    assert next(iter(found)) == promise
    with pytest.raises(AssertionError, match=says):
        raise AssertionError(found[promise])


def test_an_allowed_buffer_is_not_safe_for_threads():
    """A scratch buffer that is allowed to change is found by running another decode in the middle, on every run."""
    for _ in range(20):
        found = broken(wrong.SharedScratch, allow=["scratch"])
        assert set(found) == {"is_thread_safe"}
        assert "decode() of requests 0 and 2 by two threads at once differs" in found["is_thread_safe"]


def test_refusals_are_compared_by_their_class():
    """Which error a request is refused with is part of what it gets."""
    found = broken(wrong.RefusesInTurns, allow=["turn"])
    assert "decode() raised DecodeError: odd and decode() raised ReduceError: even" in found["is_deterministic"]


def test_threads_of_their_own_meet_too():
    """What cannot be stopped at a line, being another package's, is found by threads that run at once."""
    found = broken(wrong.SharedScratchElsewhere, allow=["scratch"])
    assert set(found) == {"is_thread_safe"}
    assert "decode() by 4 threads at once differs from one after the other" in found["is_thread_safe"]


def test_what_came_first_must_not_matter():
    """A processor that is the same for the same order, but remembers what came first, breaks the promise of order."""
    found = broken(wrong.RemembersTheFirst, allow=["scale"])
    assert "is_deterministic" not in found
    assert "decode() after other requests differs from decode() in a new instance" in found["is_order_free"]


def test_what_was_reduced_first_must_not_matter():
    """The same in reduce breaks the promise of order in its own words."""
    found = broken(wrong.RemembersTheFirstGroup, allow=["scale"])
    assert "is_deterministic" not in found
    assert "reduce() after other requests differs from reduce() in a new instance" in found["is_order_free"]


def test_how_tensors_lie_in_memory_must_not_matter():
    """A processor that takes it that memory is contiguous breaks the promise of groups on other layouts alone."""
    assert broken(wrong.ReadsMemory) == {}
    assert "grouped_equals_single" in broken(wrong.ReadsMemory, ORDINARY.transpose(1, 3))


CANNOT_TRAVEL = [
    (wrong.ReturnsList, "must return a tensor or a dict of tensors, got list"),
    (wrong.ReturnsNumpy, "must return a tensor or a dict of tensors, got ndarray"),
    (wrong.LosesTheRequests, r"must keep the requests on axis 0: got shape \[2, 4, 5\] for 3 requests"),
    (wrong.ReturnsScalar, r"must keep the requests on axis 0: got shape \[\] for 3 requests"),
    (wrong.ReturnsSparse, "must return strided tensors, got layout torch.sparse_coo"),
    (wrong.ReturnsOddDtype, "cannot travel: a tensor of dtype float8_e4m3fnuz"),
    (wrong.ReturnsNothing, "must return a dict of at least one tensor by name"),
    (wrong.ReturnsNumberedDict, r"must return a dict of at least one tensor by name \(str\), got names \[0\]"),
]


@pytest.mark.parametrize(("make", "says"), CANNOT_TRAVEL)
def test_what_cannot_travel_is_named(make, says):
    """What reduce returned and no worker could send is refused in the words of the first promise."""
    with pytest.raises(BrokenPromiseError, match=says):
        PROMISES[0](Case(make, ORDINARY))


@pytest.mark.parametrize("make", [make for make, _ in CANNOT_TRAVEL])
def test_the_worker_refuses_what_the_check_refuses(make):
    """The pooler in the worker has a failure for all of it too, and for none of what the check lets pass."""
    from vllm_mmout.engine import wire
    from vllm_mmout.engine.worker.reduce import ReducingPooler

    def fails(make):
        pooler = ReducingPooler(torch.nn.Identity(), {"one": make()})
        return isinstance(pooler._reduce(ORDINARY.clone(), 3, OutputParams()), wire.Failure)

    assert fails(make)
    assert not fails(right.Right)


def test_each_promise_is_broken_by_someone():
    """Every promise of the list has a processor here that breaks it: none of them is empty."""
    named = {promise for _, promise, _ in BREAKS_ONE + BREAKS_SEVERAL}
    assert named | {TRAVELS, "is_thread_safe", "is_order_free"} == EVERYTHING
