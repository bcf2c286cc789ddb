"""`check_output_processor`: checks an output processor against the engine's rules, on generated or given examples."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import hypothesis
import torch
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from hypothesis.errors import Flaky

from vllm_mmout.params import OutputParams
from vllm_mmout.processors.base import OutputProcessor
from vllm_mmout.testing.case import BrokenPromiseError, Case, Equal, Make, Refused
from vllm_mmout.testing.promises import PROMISES, Promise
from vllm_mmout.testing.strategies import output_params
from vllm_mmout.testing.threads import HangsError, WatchedThread

if TYPE_CHECKING:
    from vllm_mmout.processors.base import Raw

Outputs: TypeAlias = "st.SearchStrategy[Raw] | Sequence[Raw]"
_Params: TypeAlias = "st.SearchStrategy[OutputParams] | Sequence[OutputParams] | OutputParams"

T = TypeVar("T")


def check_output_processor(
    make: Make,
    outputs: Outputs,
    *,
    params: _Params | None = None,
    equal: Equal | None = None,
    allow: Sequence[str] = (),
    promises: Sequence[Promise] = PROMISES,
    settings: hypothesis.settings | None = None,
    hangs_after_s: float = 60.0,
) -> None:
    """Check that an output processor keeps the rules that the engine relies on, listed in `PROMISES`.

    torch uses one thread during the check.

    Args:
        make: the class, or a callable that makes a fresh instance, as each process does.
        outputs: the model's outputs: a strategy (`tensors`, `model_outputs`) or a list of examples; each is a tensor or
            a dict of tensors, with the requests on axis 0. Include groups of several requests. Every example of a list
            is checked.
        params: options of the requests: a strategy that may draw ``OutputParams()``, a list, or one value; by default
            any value that the processor's ``outputs`` allow, with options about the input, which it should ignore.
        equal: function that compares two output objects, for classes that `difference` cannot compare.
        allow: names of attributes and variables that may change while requests are served, such as a decoder that is
            loaded on first use.
        promises: the promises to check.
        settings: hypothesis' settings; by default those of the loaded profile, derandomised if ``CI`` is set. The
            deadline is always off.
        hangs_after_s: time limit for one example, in seconds.

    Raises:
        TypeError: ``make`` is an instance.
        BrokenPromiseError: an `AssertionError` with the processor's name, the promise, and the difference on the
            smallest example found; or the processor refused every example.

    """
    if isinstance(make, OutputProcessor):
        raise TypeError(
            f"make must be a class, or a function that makes an instance, got an instance of {type(make).__name__};"
            " every process has its own instance"
        )
    checking = _ProcessorCheck(make, equal, allow, promises)
    test = _test(checking, outputs, output_params(make()) if params is None else params, _settings(settings))
    with _one_torch_thread(), WatchedThread(hangs_after_s) as checking.thread:
        try:
            test()
        except HangsError as error:
            raise BrokenPromiseError(str(error)) from None
        except Flaky:
            if checking.broken is None:
                raise
            raise BrokenPromiseError(f"{checking.broken} (not every time: not again on the same input)") from None
    if checking.refused is not None and not checking.served:
        raise BrokenPromiseError(
            f"{checking.name} refused every example, so that nothing was checked; the last: {checking.refused}."
            " Give outputs= that it takes"
        )


def _test(
    checking: _ProcessorCheck, outputs: Outputs, params: _Params, settings: hypothesis.settings
) -> Callable[[], None]:
    """Return a hypothesis test that runs ``checking`` on examples of model outputs and options.

    If ``outputs`` is a list, the test first checks each entry with the first of the ``params``.
    """
    if isinstance(params, OutputParams):
        params = [params]

    def check(outputs: Raw, params: OutputParams) -> None:
        checking.example(outputs, params)

    check.__name__ = check.__qualname__ = f"check_{checking.name}"  # hypothesis finds earlier failures by this name
    test: Callable[[], None] = settings(hypothesis.given(outputs=_strategy(outputs), params=_strategy(params))(check))
    if not isinstance(outputs, st.SearchStrategy):
        first = OutputParams() if isinstance(params, st.SearchStrategy) else params[0]
        for example in outputs:
            test = hypothesis.example(outputs=example, params=first)(test)
    return test


def _strategy(values: st.SearchStrategy[T] | Sequence[T]) -> st.SearchStrategy[T]:
    return values if isinstance(values, st.SearchStrategy) else st.sampled_from(values)


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    """Limit torch to a single thread. Waking other threads takes longer than reducing small tensors."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class _ProcessorCheck:
    thread: WatchedThread

    def __init__(self, make: Make, equal: Equal | None, allow: Sequence[str], promises: Sequence[Promise]) -> None:
        self.name = type(make()).__name__
        self.broken: BrokenPromiseError | None = None
        """Error for the last rule that the processor broke."""
        self.refused: Refused | None = None
        """Last request that the processor refused, with its error."""
        self.served = 0
        """Number of test examples for which the processor returned an output to at least one request."""
        self._make = make
        self._equal = equal
        self._allow = tuple(allow)
        self._promises = tuple(promises)

    def example(self, outputs: Raw, params: OutputParams) -> None:
        """Check that the processor under test keeps all rules of the engine for one example."""
        case = Case(self._make, outputs, params, self._equal, self._allow)
        for promise in self._promises:
            self._check(promise, case)
        refused = [outcome for outcome in case.alone if isinstance(outcome, Refused)]
        self.served += len(refused) < case.count
        self.refused = refused[-1] if refused else self.refused

    def _check(self, promise: Promise, case: Case) -> None:
        words = promise.__name__.replace("_", " ")
        try:
            self.thread(lambda: promise(case))
        except BrokenPromiseError as error:
            self._promises = (promise,)  # hypothesis now shrinks the example: look for this failure only
            self.broken = BrokenPromiseError(f"{self.name} breaks the promise {words!r}: {error}")
            raise self.broken from error.__cause__
        except HangsError as error:
            raise HangsError(f"{self.name}: {words}: {error}, with {case.params!r} and {case.outputs!r}") from None


def _settings(settings: hypothesis.settings | None) -> hypothesis.settings:
    """Return hypothesis settings that report a single failure and tolerate slow machines."""
    parent = settings or hypothesis.settings()
    return hypothesis.settings(
        parent,
        deadline=None,
        report_multiple_bugs=False,
        phases=[phase for phase in parent.phases if phase is not Phase.explain],  # it would show lines of this file
        suppress_health_check=[*parent.suppress_health_check, HealthCheck.too_slow],
        derandomize=parent.derandomize or (settings is None and bool(os.environ.get("CI"))),
    )
