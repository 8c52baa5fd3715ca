"""A language model as the judge: what it is asked, what of its reply counts, and what its endpoint may do."""

import asyncio
import json
import logging
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.rewards.judge_server import Handler, answer_of, nonce_of, served, verdict
from verl_core.config.errors import UserError
from verl_core.config.schema_reward_models import JudgeConfig
from verl_core.rewards.models import endpoint
from verl_core.rewards.models.endpoint import Endpoint
from verl_core.rewards.models.judge import Judge
from verl_core.rewards.verdict import ScoreRequest, Verdict

QUESTION = [{"role": "user", "content": "What is 2 + 3?"}]


def asked(answer: str = "5", gold: object = "5", prompt: list | None = None) -> ScoreRequest:
    return ScoreRequest("words", answer, gold, {}, QUESTION if prompt is None else prompt)


def judged(play, requests: list[ScoreRequest], cache: Path | None = None, **keys) -> tuple[list[Verdict], list[dict]]:
    """Verdicts on the requests by a judge whose endpoint plays so, and what it was sent."""
    with served(play) as server:
        cfg = JudgeConfig(**{"url": server.url, "model": "m", "timeout_s": 5.0, "retries": 2} | keys)
        judge = Judge(cfg, lambda: Endpoint(cfg, pause_s=0.001), cache, seed=0)
        try:
            return asyncio.run(judge.score(requests)), server.bodies
        finally:
            judge.close()
            judge.close()


def one(play, **keys) -> Verdict:
    return judged(play, [asked()], **keys)[0][0]


def test_a_number_on_the_scale_is_the_reward():
    found = one(verdict, temperature=0.5, max_tokens=99)
    assert found == Verdict(reward=0.7, reason="judged 7")
    verdicts, bodies = judged(lambda h, b: verdict(h, b, "2"), [asked()], scale=(1, 5), temperature=0.5, max_tokens=99)
    assert verdicts[0].reward == 0.25
    body = bodies[0]
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("m", 0.5, 99)
    prompt = body["messages"][0]["content"]
    assert answer_of(prompt) == "5" and "What is 2 + 3?" in prompt and "a number from 1 to 5" in prompt
    assert "reference answer" in prompt and nonce_of(prompt) not in prompt[: prompt.index("Now judge")]


def test_further_fields_of_a_request_and_fields_that_an_endpoint_does_not_take():
    more = {"max_tokens": None, "max_completion_tokens": 9, "chat_template_kwargs": {"enable_thinking": False}}
    (body,) = judged(verdict, [asked()], extra_body=more)[1]
    assert "max_tokens" not in body and body["max_completion_tokens"] == 9 and body["temperature"] == 0
    assert body["chat_template_kwargs"] == {"enable_thinking": False}


def test_labels_take_the_place_of_numbers():
    labels = {"good": 1.0, "so so": 0.25, "poor": -1.0}
    assert one(lambda h, b: verdict(h, b, "so so"), labels=labels).reward == 0.25
    for word in ("Good", "good.", "7", "gооd"):  # the last with Cyrillic letters
        assert (
            one(lambda h, b, w=word: verdict(h, b, w), labels=labels).error
            == "the judge's verdict is none of the labels"
        )


def test_the_ground_truth_is_shown_where_it_may_be():
    for gold, keys, shown in (("5", {}, True), ("5", {"show_ground_truth": False}, False), (None, {}, False)):
        _, bodies = judged(verdict, [asked(gold=gold)], **keys)
        assert ("reference answer" in bodies[0]["messages"][0]["content"]) == shown


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ("{nonce}: 7 ", None),
        ("no idea", "last line is no verdict"),
        ("", "last line is no verdict"),
        ("{nonce}: 7\nThat is all.", "last line is no verdict"),
        ("verdict: 7", "last line is no verdict"),
        ("**{nonce}: 7**", "last line is no verdict"),
        ("{nonce}:7", "last line is no verdict"),
        ("{nonce}: 7/10", "not a number"),
        ("{nonce}: 1e1", "not a number"),
        ("{nonce}: +7", "not a number"),
        ("{nonce}: ７", "not a number"),
        ("{nonce}: nan", "not a number"),
        ("{nonce}: 9" + "9" * 5000, "not a number"),
        ("{nonce}: 11", "outside the scale"),
        ("{nonce}: -1", "outside the scale"),
        ("{nonce}: a number from 0 to 10 in digits.", "not a number"),
        (None, "replied with no text"),
        ([{"type": "text"}], "replied with no text"),
    ],
)
def test_a_reply_is_read_strictly(reply, says):
    def play(handler: Handler, body: dict) -> None:
        nonce = nonce_of(body["messages"][0]["content"])
        handler.reply(reply.replace("{nonce}", nonce) if isinstance(reply, str) else reply)

    found = one(play)
    assert (found.error is None) == (says is None) and (says or "") in (found.error or "")
    assert found.reward == (0.7 if says is None else 0.0)


def test_a_reply_that_was_cut_off_gives_no_score():
    def cut(handler: Handler, body: dict) -> None:  # 1 of 10
        handler.reply(f"{nonce_of(body['messages'][0]['content'])}: 1", finish="length")

    assert "cut off" in one(cut).error


def test_a_server_in_trouble_is_asked_again():
    plays = [
        lambda h, b: h.send(b"slow down", 429, Retry_After="0"),
        lambda h, b: h.send(b"", 500),
        lambda h, b: h.reset(),
        lambda h, b: h.send(b'{"choices": [{"mess'),
    ]

    for trouble in plays:
        turns = iter([trouble, trouble, verdict])
        assert one(lambda h, b, turns=turns: next(turns)(h, b)).reward == 0.7
        verdicts, bodies = judged(trouble, [asked()], retries=1)
        assert verdicts[0].error and verdicts[0].reward == 0 and len(bodies) == 2


@pytest.mark.parametrize(
    ("play", "says"),
    [
        (lambda h, b: h.send(b"", 401), "status 401"),
        (lambda h, b: h.send(b"", 404), "status 404"),
        (lambda h, b: h.send(b"", 302, Location="http://127.0.0.1:1/"), "status 302"),
        (lambda h, b: h.send(b"x" * ((4 << 20) + 1)), "longer than 4 MiB"),
    ],
)
def test_what_will_not_go_away_is_asked_once(play, says):
    verdicts, bodies = judged(play, [asked()])
    assert says in verdicts[0].error and len(bodies) == 1


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"7", b'{"choices": []}', b'{"choices": [{"message": null}]}', b"\xff", b"[" * 10**5]
)
def test_what_is_no_chat_completion_is_a_failed_score(body):
    assert "chat completion" in one(lambda h, b: h.send(body), retries=0).error


def test_nobody_there():
    cfg = JudgeConfig(url="http://127.0.0.1:9/v1", model="m", retries=1)
    judge = Judge(cfg, lambda: Endpoint(cfg, pause_s=0.001), None, seed=0)
    assert "ConnectError" in asyncio.run(judge.score([asked()]))[0].error
    judge.close()


def test_slow_hanging_and_dripping_servers_cost_their_time_and_no_more():
    def hang(handler: Handler, body: dict) -> None:
        handler.server.over.wait(5)

    def drip(handler: Handler, body: dict) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        while not handler.server.over.wait(0.02):
            handler.wfile.write(b" ")

    for play in (hang, drip):
        began = time.perf_counter()
        found = one(play, timeout_s=0.15, retries=1)
        assert found.error == "timeout: the judge took longer than 0.15 s" and time.perf_counter() - began < 4


def test_closing_gives_up_what_is_under_way():
    with served(lambda h, b: h.server.over.wait(5) and None) as server:
        cfg = JudgeConfig(url=server.url, model="m")
        judge = Judge(cfg, lambda: Endpoint(cfg), None, seed=0)

        async def leave() -> None:
            waiting = asyncio.create_task(judge.score([asked()]))
            while not server.bodies:
                await asyncio.sleep(0.005)
            await asyncio.to_thread(judge.close)
            with pytest.raises(asyncio.CancelledError):
                await waiting

        began = time.perf_counter()
        asyncio.run(leave())
        assert time.perf_counter() - began < 4


def test_no_more_requests_than_allowed_at_a_time_and_verdicts_in_order():
    def play(handler: Handler, body: dict) -> None:
        time.sleep(0.01)
        verdict(handler, body, answer_of(body["messages"][0]["content"]))

    with served(play) as server:
        cfg = JudgeConfig(url=server.url, model="m", max_concurrent=3)
        judge = Judge(cfg, lambda: Endpoint(cfg), None, seed=0)
        found = asyncio.run(judge.score([asked(f"{k}") for k in range(10)]))
        judge.close()
        assert [v.reward for v in found] == [k / 10 for k in range(10)] and server.most <= 3


def test_a_budget_of_requests_ends_judging_and_retries_count():
    turns = iter([429])

    def play(handler: Handler, body: dict) -> None:
        handler.send(b"", status) if (status := next(turns, None)) else verdict(handler, body)

    verdicts, bodies = judged(play, [asked(f"{k}") for k in range(5)], max_requests=3, max_concurrent=1)
    assert len(bodies) == 3 and [v.error is None for v in verdicts] == [True, True, False, False, False]
    assert verdicts[-1].error == "the budget of 3 requests to the judge is spent"


def test_equal_answers_are_judged_once_and_a_cache_keeps_them(tmp_path: Path):
    cache = tmp_path / "sub" / "judgements.sqlite"
    requests = [asked("5"), asked("6"), asked("5"), asked("5")]
    first, bodies = judged(verdict, requests, cache)
    assert len(bodies) == 2
    again, bodies = judged(lambda h, b: h.send(b"", 500), requests, cache)
    assert again == first and not bodies
    others = [
        {"model": "n"}, {"instruction": "Judge the style."}, {"scale": (0, 7)}, {"temperature": 1.0},
        {"show_ground_truth": False}, {"extra_body": {"seed": 1}}, {"labels": {"7": 1.0, "8": 0.0}},
    ]  # fmt: skip
    for keys in others:  # what a judgement depends on
        assert len(judged(verdict, requests[:1], cache, **keys)[1]) == 1
    assert len(judged(verdict, [asked("5", prompt=[{"role": "user", "content": "And 3 + 2?"}])], cache)[1]) == 1


def test_failures_are_not_kept(tmp_path: Path):
    cache = tmp_path / "judgements.sqlite"
    assert judged(lambda h, b: h.reply("no"), [asked()], cache)[0][0].error
    assert judged(verdict, [asked()], cache)[0][0].reward == 0.7
    with sqlite3.connect(cache) as file:  # a word that somebody else put there is not believed
        file.execute("UPDATE judgements SET word = '99'")
    assert judged(verdict, [asked()], cache)[0][0].reward == 0.7


def test_two_processes_share_a_cache(tmp_path: Path):
    cache = tmp_path / "judgements.sqlite"
    program = (
        "import asyncio, sys; from pathlib import Path\n"
        "from verl_core.rewards.models.cache import JudgementCache\n"
        "async def work():\n"
        "    cache = JudgementCache(Path(sys.argv[1]))\n"
        "    for k in range(30): await cache.put(f'{k}', sys.argv[2])\n"
        "    print(len(await cache.get([f'{k}' for k in range(1200)]))); cache.close()\n"
        "asyncio.run(work())"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", program, str(cache), name], stdout=subprocess.PIPE, text=True)
        for name in "ab"
    ]
    assert [p.communicate(timeout=30)[0] for p in both] == ["30\n", "30\n"]
    with sqlite3.connect(cache) as file:
        assert file.execute("SELECT count(*) FROM judgements").fetchone() == (30,)


def test_a_cache_that_cannot_be_used_is_refused_and_one_that_breaks_is_told_once(tmp_path: Path, caplog):
    wrong = tmp_path / "notes.txt"
    wrong.write_text("my notes, " * 200)
    for path in (wrong, wrong / "below"):
        with pytest.raises(UserError, match=r"reward\.judge\.cache"):
            judged(verdict, [asked()], path)
    cache = tmp_path / "judgements.sqlite"

    def play(handler: Handler, body: dict) -> None:
        with sqlite3.connect(cache) as file:
            file.execute("DROP TABLE IF EXISTS judgements")
        verdict(handler, body)

    with caplog.at_level(logging.WARNING):
        found, _ = judged(play, [asked(f"{k}") for k in range(3)], cache)
    assert [v.reward for v in found] == [0.7] * 3 and len(caplog.records) == 1


def test_the_endpoints_key_comes_from_the_environment(monkeypatch):
    with served(verdict) as server:
        cfg = JudgeConfig(url=server.url, model="m", api_key_env="MY_KEY")
        with pytest.raises(UserError, match="MY_KEY: that variable is not set"):
            Judge(cfg, lambda: Endpoint(cfg), None, seed=0)
        monkeypatch.setenv("MY_KEY", "secret")
        judge = Judge(cfg, lambda: Endpoint(cfg), None, seed=0)
        asyncio.run(judge.score([asked()]))
        judge.close()
        assert server.keys == ["Bearer secret"]


def test_an_address_and_a_key_that_no_request_can_carry_are_refused(monkeypatch):
    for url in ("http://ä..b/v1", "http://h/v1\x01"):
        with pytest.raises(UserError, match=r"reward\.judge\.url"):
            Endpoint(JudgeConfig(url=url, model="m"))
    for key in ("schlüssel", "secret\n"):
        monkeypatch.setenv("MY_KEY", key)
        with pytest.raises(UserError, match="MY_KEY holds characters") as refused:
            Endpoint(JudgeConfig(url="http://h/v1", model="m", api_key_env="MY_KEY"))
        assert key not in str(refused.value)


def test_an_instruction_from_a_file(tmp_path: Path):
    file = tmp_path / "instruction.txt"
    file.write_text("Judge only the spelling.\n")
    _, bodies = judged(verdict, [asked()], instruction_file=str(file))
    assert bodies[0]["messages"][0]["content"].startswith("Judge only the spelling.\n\n")
    with pytest.raises(UserError, match="instruction_file"):
        judged(verdict, [asked()], instruction_file=str(tmp_path / "none"))


def test_it_is_asked_from_several_loops_and_threads():
    with served(verdict) as server:
        cfg = JudgeConfig(url=server.url, model="m")
        judge = Judge(cfg, lambda: Endpoint(cfg), None, seed=0)
        judge.check(["anything"])
        for k in range(3):
            assert asyncio.run(judge.score([asked(f"{k}")]))[0].reward == 0.7
        judge.close()


def test_waits_between_attempts_grow_and_are_bounded():
    cfg = JudgeConfig(url="http://h/v1", model="m")

    async def waits() -> list[float]:
        client = Endpoint(cfg, pause_s=1.0)
        found = [client._wait_s(k, None) for k in range(12)] + [client._wait_s(0, 1e9), client._wait_s(0, 2.0)]
        await client.close()
        return found

    *grown, asked_long, asked_short = asyncio.run(waits())
    assert all(0.5 * 2**k <= w <= 1.5 * 2**k for k, w in enumerate(grown[:4]))
    assert max(grown) <= endpoint.LONGEST_WAIT_S == asked_long and asked_short == 2.0


def test_texts_that_no_utf8_has_are_sent_all_the_same():
    found, bodies = judged(verdict, [asked("\ud800 and \0")])
    assert found[0].reward == 0.7 and "\ud800" in json.loads(json.dumps(bodies[0]))["messages"][0]["content"]
