"""Who gets which request."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from verl_core.rollout.protocol import Sampling, TokenRequest
from verl_core.rollout.router import Router


def asked(session: str, tokens: int = 100, prompt: int = 10) -> TokenRequest:
    return TokenRequest("", session, (1,) * prompt, Sampling(tokens), 0)


def groups(prompts: int, samples: int, tokens: int = 100) -> list[TokenRequest]:
    return [asked(f"p{p}", tokens) for p in range(prompts) for _ in range(samples)]


def test_the_samples_of_a_prompt_stay_together_where_there_are_prompts_for_all():
    router = Router(4)
    seats = router.assign(groups(8, 5), range(4))
    homes = [{seat.replica for seat in seats[p * 5 : p * 5 + 5]} for p in range(8)]
    assert all(len(home) == 1 for home in homes) and router.outstanding == [1000] * 4


def test_few_prompts_are_spread_over_all():
    router = Router(4)
    router.assign(groups(1, 8), range(4))
    assert router.outstanding == [200] * 4


def test_the_next_turn_of_a_session_goes_where_its_prefix_is():
    router = Router(3)
    first = router.assign([asked(name) for name in "abc"], range(3))
    assert [seat.replica for seat in first] == [0, 1, 2]
    for seat in first:
        router.release(seat)
    assert [seat.replica for seat in router.assign([asked(name) for name in "cab"], range(3))] == [2, 0, 1]


def test_a_prefix_is_left_when_its_replica_is_too_busy():
    for prompt, goes_to in ((50, 1), (900, 0)):  # what is to be read again against what waits
        router = Router(2)
        router.release(router.assign([asked("a")], range(2))[0])
        router.assign([asked("busy", 1000)], [0])
        assert router.assign([asked("a", 100, prompt)], range(2))[0].replica == goes_to


def test_a_replica_that_was_lost_has_no_prefixes():
    router = Router(2)
    router.release(router.assign([asked("b")], [1])[0])
    router.assign([asked("a")], [0])
    router.forget(1)
    router.assign([asked("c", 1000)], [1])
    assert router.assign([asked("b")], range(2))[0].replica == 0
    assert router.assign([asked("d")], [1])[0].replica == 1  # only the ready ones


def test_tokens_that_were_drawn_are_no_longer_outstanding():
    router = Router(1)
    seat = router.assign([asked("a", 100)], [0])[0]
    router.drawn(seat, 30)
    assert router.outstanding == [70]
    router.drawn(seat, 500)
    router.release(seat)
    router.release(seat)
    assert router.outstanding == [0]


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 300)), max_size=20), max_size=8), st.integers(1, 4)
)
def test_loads_are_even_routes_repeat_and_counts_return_to_zero(calls, replicas):
    routers = Router(replicas), Router(replicas)
    for call in calls:
        requests = [asked(f"s{session}", tokens, prompt=0) for session, tokens in call]
        seats, same = (router.assign(requests, range(replicas)) for router in routers)
        assert seats == same
        even = sum(tokens for _, tokens in call) / replicas
        longest = max((tokens for _, tokens in call), default=0)
        assert all(load <= even + longest for load in routers[0].outstanding)
        for router, given_seats in zip(routers, (seats, same), strict=True):
            for seat in given_seats:
                router.release(seat)
            assert router.outstanding == [0] * replicas
