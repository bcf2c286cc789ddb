"""Calls of networks that are run as one batch: which are, and what each call gets."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("greenlet")

from vllm_mmout.wings.iterative.pipelines.call_batching import CallBatcher  # noqa: E402 - as above
from vllm_mmout.wings.iterative.pipelines.network_calls import NetworkCall  # noqa: E402 - after the imports that may skip


class Output(NamedTuple):
    sample: Any
    other: None


def network(sample, time, table=None, *, scale=1.0, many=None):
    """Of each row, and of its own time."""
    if (sample < 0).any():
        raise ValueError("below zero")
    extra = 0 if many is None else sum(many["more"])
    return Output(sample * time.reshape(-1, 1) * scale + (0 if table is None else table.sum()) + extra, None)


def of_batch(sample, time):
    """Not of a row alone."""
    return [sample - sample.mean(), time]


def ran(function, *arguments, name="unet", times=2):
    """What calls give, run so many times together, and how many rows each run of the network had in the end."""
    rows = []

    def run(call):
        rows.append(len(call.args[0]))
        return call.function(*call.args, **call.kwargs)

    together = CallBatcher(run)
    for _ in range(times):
        rows.clear()
        results = together([NetworkCall(name, function, args, kwargs) for args, kwargs in arguments])
    return results, rows


def call(rows, time, *more, **kwargs):
    return (torch.arange(1.0, rows * 3 + 1).reshape(rows, 3) * time, torch.tensor(float(time)), *more), kwargs


def test_calls_of_several_rows_and_times_are_one_batch():
    """Each gets its rows, at its own time; nested tensors are joined too."""
    calls = [call(n, n + 1, many={"more": [torch.ones(n, 1) * n]}) for n in (1, 2, 3)]
    results, rows = ran(network, *calls)
    assert rows == [6]
    for (args, kwargs), result in zip(calls, results, strict=True):
        assert isinstance(result, Output)
        torch.testing.assert_close(result.sample, network(*args, **kwargs).sample)


def test_what_the_rows_share_must_be_the_same():
    """Tables that all rows have in common, and values that are no tensors, keep calls apart where they differ."""
    tables = [torch.ones(5, 2), torch.ones(5, 2), torch.zeros(5, 2)]
    calls = [call(2, n + 1, table) for n, table in enumerate(tables)] + [call(2, 4, tables[0], scale=2.0)]
    results, rows = ran(network, *calls)
    assert sorted(rows) == [2, 2, 4]
    for (args, kwargs), result in zip(calls, results, strict=True):
        torch.testing.assert_close(result.sample, network(*args, **kwargs).sample)


def test_a_network_that_looks_at_the_whole_batch_is_run_alone():
    """The first batch is compared with what its calls give alone."""
    calls = [call(2, 1), call(2, 5)]
    results, rows = ran(of_batch, *calls)
    assert rows == [2, 2]
    for (args, _), result in zip(calls, results, strict=True):
        torch.testing.assert_close(result[0], of_batch(*args)[0])


def test_a_call_that_fails_fails_alone():
    """The others of its batch are run without it."""
    good, bad = call(2, 3), call(2, -1)
    results, _ = ran(network, good, good)
    assert len(results) == 2
    results, _ = ran(network, good, bad, good, times=3)
    assert isinstance(results[1], ValueError)
    torch.testing.assert_close(results[2].sample, network(*good[0]).sample)


def test_large_latents_are_decoded_one_after_the_other():
    """What they are decoded to would not fit."""
    calls = [((torch.ones(1, 4, 160, 160), torch.tensor(1.0)), {}) for _ in range(3)]
    _, rows = ran(lambda sample, _: sample, *calls, name="vae.decode")
    assert rows == [1, 1, 1]
    _, rows = ran(lambda sample, _: sample, *calls, name="unet")
    assert rows == [3]


def with_a_nan(sample, time):
    """A network whose first value is NaN, and whose other values depend on the whole batch."""
    rows = sample - sample.mean()
    return [torch.where(torch.arange(sample.shape[1]) == 0, torch.nan, rows)]


def test_a_result_with_nan_does_not_show_that_a_batch_is_equal():
    """Calls whose results hold NaN are run one by one."""
    _, rows = ran(with_a_nan, call(1, 2), call(2, 3))
    assert rows == [1, 2]
