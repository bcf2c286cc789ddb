"""Rules ("promises") that the engine relies on and an output processor must keep, each checked by a function.

Each function takes a `Case`, and raises BrokenPromiseError if the processor breaks the rule. Its docstring states the
rule and the reason for it. `PROMISES` lists all functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeAlias

import torch

from vllm_mmout.testing.case import (
    BrokenPromiseError,
    Case,
    Refused,
    check_answered,
    compare_sent,
    copied,
    outcome_difference,
    rows,
    spoilt,
    stop_lines,
    unpacked,
    without_length,
)
from vllm_mmout.testing.equality import difference
from vllm_mmout.testing.state import changes, snapshot
from vllm_mmout.testing.threads import interleaved, lines_of, packages_of

Promise: TypeAlias = Callable[[Case], None]

_THREADS = 4


def what_reduce_returns_travels(case: Case) -> None:
    """Check that the worker can send the output of ``reduce`` to the frontend.

    The output must be tensors of supported types, with the requests on axis 0.
    """
    processor = case.make()
    case.reduce(processor)
    case.reduce(processor, rows(case.outputs, [0]))


def answers_or_refuses(case: Case) -> None:
    """Check that each request gets an output or fails with an `MMOutError`.

    The client sees the message of the error.
    """
    check_answered(case.alone, "")


def answers_bad_values(case: Case) -> None:
    """Check that NaN or infinities in a request give an output or an `MMOutError`, and do not affect other requests."""
    for bad in (math.nan, math.inf, -math.inf):
        if (group := spoilt(case.outputs, bad)) is None:
            continue
        processor, frontend = case.make(), case.make()
        sent = case.reduce(processor, group)
        results = [case.decode(frontend, packed) for packed in sent]
        if isinstance(sent[0], Refused):  # the engine then reduces each request of the group on its own
            results[1:] = case.alone[1:]
        check_answered(results, f" where request 0 is all {bad}")
        case.compare(case.alone[1:], results[1:], f"request 0 being all {bad} changes those beside it", first=1)


def answers_empty_axes(case: Case) -> None:
    """Check that a request whose tensors have an axis of length 0 gets an output or an `MMOutError`."""
    for axis, empty in without_length(case.outputs):
        frontend = case.make()
        results = [case.decode(frontend, packed) for packed in case.reduce(case.make(), empty)]
        check_answered(results, f" where axis {axis} has length 0")


def is_deterministic(case: Case) -> None:
    """Check that ``reduce`` and ``decode`` return equal results when they are called again with the same input.

    The second call is made in the same instance of the processor and in a new instance, because the worker and the
    frontend have separate instances.
    """
    worker, frontend = case.make(), case.make()
    sent = case.reduce(worker)
    first = [case.decode(frontend, packed) for packed in sent]
    for again, instance in ((frontend, "the same instance"), (case.make(), "another instance")):
        case.compare(
            first, [case.decode(again, packed) for packed in sent], f"decode() gives something else in {instance}"
        )
    for again, instance in ((worker, "the same instance"), (case.make(), "another instance")):
        compare_sent(sent, case.reduce(again), f"reduce() gives something else in {instance}")


def keeps_nothing_of_a_request(case: Case) -> None:
    """Check that requests change no attribute of the processor or its class, and no global or closure variable."""
    for method in ("reduce", "decode"):
        processor = case.make()
        sent = case.reduce(case.make())
        before = snapshot(processor, case.allow)
        if method == "reduce":
            case.reduce(processor)
        else:
            for packed in sent:
                case.decode(processor, packed)
        changed = changes(before, snapshot(processor, case.allow))
        if changed:
            raise BrokenPromiseError(
                f"{method}() left something on the processor: {'; '.join(changed[:3])}. What belongs to a request is an"
                " argument, or what begin() returns; for what does not (a decoder loaded late) give allow=[its name]"
            )


def leaves_its_inputs_alone(case: Case) -> None:
    """Check that ``reduce`` and ``decode`` do not write to their inputs, because other code reads the same memory."""
    output = copied(case.outputs)
    before = copied(output)
    processor = case.make()
    with suppress(Exception, SystemExit):
        processor.reduce(output, case.params)
    if (place := difference(before, output, at="the model's output")) is not None:
        raise BrokenPromiseError(
            f"reduce() wrote to its input, which other processors get as well: before and after, {place}"
        )
    for request, sent in enumerate(case.reduce(case.make())):
        if isinstance(sent, Refused):
            continue
        received, frontend = sent.clone(), case.make()
        with suppress(Exception, SystemExit):
            frontend.decode(unpacked(received), case.params, frontend.begin(case.params))
        if not torch.equal(received, sent):
            place = difference(unpacked(sent), unpacked(received), at="raw")
            raise BrokenPromiseError(
                f"decode() wrote to raw, which is read-only: request {request}, before and after, {place}"
            )


def is_order_free(case: Case) -> None:
    """Check that the result of a request does not depend on the requests that came before it."""
    sent = case.reduce(case.make())
    frontend = case.make()
    expected = [case.decode(case.make(), packed) for packed in sent]
    backwards = [case.decode(frontend, packed) for packed in reversed(sent)][::-1]
    case.compare(expected, backwards, "decode() after other requests differs from decode() in a new instance")
    worker = case.make()
    for row in reversed(range(case.count)):
        alone = case.reduce(worker, rows(case.outputs, [row]))
        fresh = case.reduce(case.make(), rows(case.outputs, [row]))
        compare_sent(fresh, alone, f"reduce() after other requests differs from reduce() in a new instance ({row})")


def grouped_equals_single(case: Case) -> None:
    """Check that ``reduce`` returns the same bits for a request alone and in any group of requests."""
    together = case.reduce(case.make())
    if any(isinstance(sent, Refused) for sent in together):
        return  # the engine then reduces each request on its own
    orders = [list(range(case.count)), list(reversed(range(case.count)))]
    alone = [case.reduce(case.make(), rows(case.outputs, [row]))[0] for row in range(case.count)]
    for order in orders:
        group = case.reduce(case.make(), rows(case.outputs, order))
        in_order = [group[order.index(row)] for row in range(case.count)]
        compare_sent(alone, in_order, f"reduce() of {case.count} requests together differs from each alone")
    compare_sent(alone, together, f"reduce() of {case.count} requests together differs from each alone")


def is_thread_safe(case: Case) -> None:
    """Check that concurrent calls of ``decode`` in one instance give the same results as consecutive calls.

    A thread is stopped at some of its lines while another decodes. Then several threads decode all requests at once.
    """
    sent = case.reduce(case.make())
    expected = [case.decode(case.make(), packed) for packed in sent]
    frontend = case.make()
    packages = packages_of(frontend)
    if case.count > 1:
        low, high = 0, case.count - 1
        first, second = (partial(case.decode, frontend, sent[place]) for place in (low, high))
        for line in stop_lines(lines_of(first, packages), sent[low]):
            case.compare(
                (expected[low], expected[high]),
                interleaved(first, second, line, packages),
                f"decode() of requests {low} and {high} by two threads at once differs from one after the other"
                " (in the order named)",
            )
    with ThreadPoolExecutor(_THREADS) as pool:
        results = list(pool.map(lambda place: case.decode(frontend, sent[place % case.count]), range(4 * case.count)))
    case.compare(expected * 4, results, f"decode() by {_THREADS} threads at once differs from one after the other")


def assembles_one_part(case: Case) -> None:
    """Check that ``assemble`` returns the output of ``decode`` unchanged if an input has only one tile."""
    for request, sent in enumerate(case.reduce(case.make())):
        frontend = case.make()
        if isinstance(sent, Refused):
            continue
        try:
            decoded = frontend.decode(unpacked(sent.clone()), case.params, frontend.begin(case.params))
        except (Exception, SystemExit):  # noqa: BLE001, S112 - then there is no part to assemble
            continue
        different = outcome_difference(decoded, case.decode(frontend, sent), case.equal)
        if decoded is not None and different is not None:
            raise BrokenPromiseError(
                f"assemble() of one part differs from what decode() made: request {request}, {different}"
            )


PROMISES: tuple[Promise, ...] = (
    what_reduce_returns_travels,
    answers_or_refuses,
    leaves_its_inputs_alone,
    is_deterministic,
    keeps_nothing_of_a_request,
    assembles_one_part,
    grouped_equals_single,
    is_order_free,
    answers_bad_values,
    answers_empty_axes,
    is_thread_safe,
)
"""Functions that check an output processor, each for one rule of the engine, in the order of the checks."""
