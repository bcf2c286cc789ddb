"""Credits: a budget of requests and bytes, first come first served, that no cancellation can leak from."""

from __future__ import annotations

import asyncio
from collections import deque

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from vllm_mmout.engine.scene.budgets import Credits


async def turns(count=5):
    """Let every task that can go on go on."""
    for _ in range(count):
        await asyncio.sleep(0)


class Holder:
    """A request that takes a credit and holds it until it is told to end."""

    def __init__(self, credits, nbytes, log=None, name=None):
        self.admitted = False
        self.end = asyncio.Event()
        self.task = asyncio.ensure_future(self._hold(credits, nbytes, log if log is not None else [], name))

    async def _hold(self, credits, nbytes, log, name):
        async with credits.held(nbytes):
            self.admitted = True
            log.append(name)
            await self.end.wait()


async def cancelled(*holders):
    """Cancel tasks and wait for their end."""
    for holder in holders:
        holder.task.cancel()
    await asyncio.gather(*(holder.task for holder in holders), return_exceptions=True)


def test_a_credit_is_taken_until_the_count_is_used_up():
    """As many requests as the count get a credit; the next gets none until one is given back."""
    credits = Credits(count=2, nbytes=100)

    assert [credits.try_take(1), credits.try_take(1), credits.try_take(1)] == [True, True, False]
    credits.give(1)
    assert credits.try_take(1)


def test_a_credit_is_refused_when_the_bytes_do_not_fit():
    """The bytes in flight never pass the budget, to the byte."""
    credits = Credits(count=10, nbytes=100)

    assert credits.try_take(60)
    assert not credits.try_take(41)
    assert credits.try_take(40)
    assert (credits.used_count, credits.used_bytes) == (2, 100)


async def test_a_request_larger_than_the_budget_is_admitted_alone():
    """An oversize request waits until nothing is in flight, and keeps all others out while it runs."""
    credits = Credits(count=10, nbytes=100)
    small = Holder(credits, 1)
    large = Holder(credits, 1000)
    await turns()
    assert (small.admitted, large.admitted) == (True, False)

    small.end.set()
    await turns()
    late = Holder(credits, 1)
    await turns()
    assert (large.admitted, late.admitted) == (True, False)

    large.end.set()
    await turns()
    assert late.admitted
    await cancelled(late)


async def test_waiting_requests_are_admitted_in_the_order_in_which_they_came():
    """First come, first served, whatever their sizes: a small one does not pass a large one that waits."""
    credits = Credits(count=2, nbytes=100)
    log = []
    holders = [Holder(credits, nbytes, log, name) for name, nbytes in enumerate([90, 80, 5, 70, 5])]
    await turns()
    assert log == [0]

    for holder in holders:
        holder.end.set()
    await asyncio.gather(*(holder.task for holder in holders))
    assert log == [0, 1, 2, 3, 4]


async def test_nobody_takes_a_credit_past_those_who_wait():
    """try_take gives none while others wait, even where the request would fit."""
    credits = Credits(count=10, nbytes=100)
    first, waiting = Holder(credits, 90), Holder(credits, 90)
    await turns()

    assert not credits.try_take(1)
    await cancelled(waiting)
    assert credits.try_take(1)
    credits.give(1)
    await cancelled(first)


async def test_a_waiting_request_that_is_cancelled_makes_room_for_the_next():
    """Cancelling the one at the front admits those behind it that fit at once."""
    credits = Credits(count=10, nbytes=100)
    first = Holder(credits, 60)
    blocked, small = Holder(credits, 90), Holder(credits, 40)
    await turns()
    assert not small.admitted

    await cancelled(blocked)
    await turns()
    assert small.admitted
    await cancelled(first, small)
    assert (credits.used_count, credits.used_bytes) == (0, 0)


async def test_a_request_admitted_and_cancelled_in_one_turn_gives_its_credit_back():
    """A cancellation that meets the admission leaks nothing and the credit goes to the next."""
    credits = Credits(count=1, nbytes=100)
    assert credits.try_take(10)
    unlucky, next_one = Holder(credits, 20), Holder(credits, 30)
    await turns()
    credits.give(10)  # admits the unlucky one, which has not run yet
    assert (credits.used_count, credits.used_bytes, unlucky.admitted) == (1, 20, False)

    await cancelled(unlucky)
    await turns()
    assert (unlucky.admitted, next_one.admitted, credits.used_bytes) == (False, True, 30)
    await cancelled(next_one)
    assert (credits.used_count, credits.used_bytes) == (0, 0)


async def test_a_cancelled_request_that_has_not_noticed_yet_gets_no_credit():
    """A credit given back between the cancellation and its arrival goes to the next in the line."""
    credits = Credits(count=1, nbytes=100)
    assert credits.try_take(10)
    unlucky, next_one = Holder(credits, 20), Holder(credits, 30)
    await turns()
    unlucky.task.cancel()
    credits.give(10)
    await turns()

    assert (unlucky.admitted, next_one.admitted, credits.used_bytes) == (False, True, 30)
    await cancelled(next_one)
    assert (credits.used_count, credits.used_bytes) == (0, 0)


async def test_an_exception_under_a_credit_gives_it_back():
    """Whatever ends the request, its credit is free again."""
    credits = Credits(count=1, nbytes=100)
    with pytest.raises(LookupError):
        async with credits.held(7):
            raise LookupError

    assert (credits.used_count, credits.used_bytes) == (0, 0)


COUNT, NBYTES = 3, 100


class CreditsMachine(RuleBasedStateMachine):
    """Requests come, end and are cancelled at random, with and without turns of the loop; the model is two lists."""

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.credits = Credits(COUNT, NBYTES)
        self.inside = []  # (holder, nbytes): admitted; a bare credit has no holder
        self.line = deque()  # (holder, nbytes): waiting

    def teardown(self):
        """End everything; all credits are back."""
        everybody = [holder for holder, _ in [*self.inside, *self.line] if holder is not None]
        bare = [nbytes for holder, nbytes in self.inside if holder is None]
        self.loop.run_until_complete(cancelled(*everybody))
        for nbytes in bare:
            self.credits.give(nbytes)
        self.loop.close()
        assert (self.credits.used_count, self.credits.used_bytes) == (0, 0)

    def fits(self, nbytes):
        used = sum(size for _, size in self.inside)
        return not self.inside or (len(self.inside) < COUNT and used + nbytes <= NBYTES)

    def admit(self):
        while self.line and self.fits(self.line[0][1]):
            self.inside.append(self.line.popleft())

    def settle(self):
        self.loop.run_until_complete(turns())

    @rule(nbytes=st.integers(0, 150))
    def come(self, nbytes):
        """A request asks for a credit and waits where there is none."""

        async def start():
            return Holder(self.credits, nbytes)

        self.line.append((self.loop.run_until_complete(start()), nbytes))
        self.admit()
        self.settle()

    @rule(nbytes=st.integers(0, 150))
    def take_at_once(self, nbytes):
        """A request that does not wait takes a credit or goes."""
        free = not self.line and self.fits(nbytes)
        assert self.credits.try_take(nbytes) == free
        if free:
            self.inside.append((None, nbytes))

    def _leave(self, data):
        holder, nbytes = self.inside.pop(data.draw(st.integers(0, len(self.inside) - 1), label="who ends"))
        if holder is None:
            self.credits.give(nbytes)
        else:
            holder.end.set()
            self.loop.run_until_complete(holder.task)

    @precondition(lambda self: self.inside)
    @rule(data=st.data())
    def end(self, data):
        """A request ends and gives its credit back."""
        self._leave(data)
        self.admit()
        self.settle()

    @precondition(lambda self: self.line)
    @rule(data=st.data())
    def cancel_waiting(self, data):
        """A waiting request is cancelled."""
        place = data.draw(st.integers(0, len(self.line) - 1), label="who is cancelled")
        holder, _ = self.line[place]
        del self.line[place]
        holder.task.cancel()
        self.admit()
        self.settle()

    @precondition(lambda self: self.line and self.inside)
    @rule(data=st.data(), cancelled_first=st.booleans())
    def end_and_cancel_the_first_in_line(self, data, cancelled_first):
        """The credit of one that ends meets the cancellation of the one that it would go to."""
        holder, _ = self.line.popleft()
        if cancelled_first:
            holder.task.cancel()
        self._leave(data)
        if not cancelled_first:
            holder.task.cancel()
        self.admit()
        self.settle()

    @invariant()
    def the_same_as_the_model(self):
        """Who is inside, who waits, and what is used are the model's."""
        assert self.credits.used_count == len(self.inside)
        assert self.credits.used_bytes == sum(nbytes for _, nbytes in self.inside)
        assert all(holder is None or holder.admitted for holder, _ in self.inside)
        assert not any(holder.admitted for holder, _ in self.line)
        assert len(self.credits._waiting) == len(self.line)


TestCreditsMachine = CreditsMachine.TestCase
