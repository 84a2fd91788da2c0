"""What ApiModel makes of answers, against a real server on the loopback."""

import threading
from typing import Any

import pytest

from turnbench.agents.api import ApiModel
from turnbench.agents.model import Completion, Message, Metered, Prompt, Sampling
from turnbench.envs.errors import ConfigError, ModelError
from turnbench.envs.record import Failure, Outcome

KEY = "sk-very-secret-0123456789"
HELLO = Prompt((Message("user", "hello"),), seed=7)


def one(model: ApiModel, prompt: Prompt = HELLO) -> Any:
    (answer,) = model.generate([prompt])
    return answer


def test_an_answer_with_its_bill(server: Any, make: Any) -> None:
    answer = one(make(sampling=Sampling(0.5, 0.9, 32, ("\n",))))
    assert isinstance(answer, Completion)
    assert (answer.text, answer.finish, answer.logprobs, answer.ids) == ("hi", "stop", (), ())
    usage = answer.usage
    assert (usage.model_calls, usage.prompt_tokens, usage.cached_tokens) == (1, 100, 40)
    assert usage.completion_tokens == 10
    assert usage.cost == pytest.approx((60 * 0.15 + 40 * 0.075 + 10 * 0.60) / 1e6)
    assert server.bodies == [
        {
            "model": "gpt-4o-mini",
            "messages": [{"role": "user", "content": "hello"}],
            "temperature": 0.5,
            "top_p": 0.9,
            "max_tokens": 32,
            "stop": ["\n"],
            "seed": 7,
        }
    ]
    assert f"Bearer {KEY}" in server.headers[0]


def test_an_unknown_price_is_no_price(make: Any, tmp_path: Any) -> None:
    assert one(make("unheard-of")).usage.cost is None
    table = tmp_path / "prices.yaml"
    table.write_text("version: 1\nmodels: {unheard-of: {input: 0, output: 0}}", encoding="utf-8")
    assert one(make("unheard-of", prices=str(table))).usage.cost == 0


def test_missing_usage_has_no_cost(server: Any, make: Any) -> None:
    server.play = [dict(usage=False)]
    assert one(make()).usage.cost is None


def test_answers_come_in_order_and_the_cap_holds(server: Any, make: Any) -> None:
    server.play = lambda body: dict(text=f"{body['seed']}", delay=0.002 * (body["seed"] % 5))
    model = make(max_in_flight=4)
    prompts = [Prompt(HELLO.messages, seed) for seed in range(20)]
    assert [a.text for a in model.generate(prompts)] == [str(seed) for seed in range(20)]
    assert server.peak == 4


def test_many_threads_share_one_loop(server: Any, make: Any) -> None:
    server.play = lambda body: dict(text=f"{body['seed']}")
    models = [make(), make()]
    texts: dict[int, str] = {}

    def work(seed: int) -> None:
        texts[seed] = one(models[seed % 2], Prompt(HELLO.messages, seed)).text

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == {seed: str(seed) for seed in range(16)}
    assert sum(t.name == "turnbench-api" for t in threading.enumerate()) == 1


def test_no_prompts_no_calls(server: Any, make: Any) -> None:
    assert make().generate([]) == []
    assert server.bodies == []


def test_odd_text_survives(server: Any, make: Any) -> None:
    server.play = [
        dict(body='{"choices": [{"message": {"content": "\\ud83d é 漢"}, "finish_reason": "stop"}]}')
    ]
    answer = one(make(), Prompt((Message("user", "\ud800 é 😀"),)))
    assert answer.text == "? é 漢"
    assert server.bodies[0]["messages"][0]["content"] == "? é 😀"


def test_extra_fields_are_added_and_nulls_left_out(server: Any, make: Any) -> None:
    one(make(extra={"reasoning_effort": "low", "temperature": None}))
    assert server.bodies[0]["reasoning_effort"] == "low"
    assert "temperature" not in server.bodies[0]
    with pytest.raises(ConfigError, match="extra can't set messages, n"):
        make(extra={"n": 2, "messages": []})


# --- log-probs ---


ROWS = {"content": [{"token": "h", "logprob": -0.5}, {"token": "i", "logprob": -1.5}]}


@pytest.mark.parametrize(
    ("prompt_ids", "ids", "kept"),
    [([1, 2, 3], [4, 5], True), ([1, 2, 3], [4], False), ([], [4, 5], False), (None, None, False)],
)
def test_token_ids_only_where_exact(
    server: Any, make: Any, prompt_ids: Any, ids: Any, kept: bool
) -> None:
    server.play = [dict(logprobs=ROWS, token_ids=ids, top={"prompt_token_ids": prompt_ids})]
    answer = one(make(logprobs=True))
    assert answer.logprobs == (-0.5, -1.5)
    assert (answer.prompt_ids, answer.ids) == ((tuple(prompt_ids), tuple(ids)) if kept else ((), ()))
    assert server.bodies[0]["logprobs"] is True


@pytest.mark.parametrize("found", [None, {}, {"content": None}, {"content": []}])
def test_silently_missing_logprobs_are_an_error(server: Any, make: Any, found: Any) -> None:
    server.play = [dict(logprobs=found)]
    with pytest.raises(ModelError, match="gives no log-probs.*set logprobs: false"):
        one(make(logprobs=True))


@pytest.mark.parametrize("value", [None, -9999.0, "x", 1.0])
def test_a_token_without_logprob_is_never_guessed(server: Any, make: Any, value: Any) -> None:
    server.play = [dict(logprobs={"content": [ROWS["content"][0], {"logprob": value}]})]
    answer = one(make(logprobs=True))
    assert isinstance(answer, Failure) and answer.outcome is Outcome.INFRA_ERROR
    assert answer.message == "no log-prob for sampled token 1" and answer.usage.model_calls == 1


# --- answers of odd shape ---


@pytest.mark.parametrize(
    ("reply", "text", "finish"),
    [
        (dict(text="cut", finish="length"), "cut", "length"),
        (dict(text="", finish="stop"), "", "stop"),
        (dict(text=None, message={"refusal": "I won't"}), "I won't", "stop"),
        (dict(text="half", finish="content_filter"), "half", "stop"),
        (dict(text=None, message={"reasoning_content": "hm"}), "", "stop"),
        (dict(text=[{"type": "thinking"}, {"type": "text", "text": "go"}]), "go", "stop"),
    ],
)
def test_what_counts_as_an_answer(server: Any, make: Any, reply: Any, text: str, finish: str) -> None:
    server.play = [reply]
    answer = one(make(max_retries=0))
    assert isinstance(answer, Completion), answer
    assert (answer.text, answer.finish) == (text, finish)


def test_reasoning_that_leaves_no_tokens_is_told_once(server: Any, make: Any) -> None:
    server.play = [dict(text=None, finish="length")]
    model = make()
    with pytest.warns(UserWarning, match="max_tokens was used up"):
        assert one(model).finish == "length"
    assert one(model).text == ""


def test_a_filtered_answer_is_the_agents_failure(server: Any, make: Any) -> None:
    server.play = [dict(text=None, finish="content_filter")]
    assert one(make()).outcome is Outcome.AGENT_ERROR
    server.play = [
        dict(body={"error": {"code": "content_filter", "message": "management policy"}}, status=400)
    ]
    assert one(make()).outcome is Outcome.AGENT_ERROR
    assert len(server.bodies) == 2


def test_what_is_paid_for_nothing_is_billed(server: Any, make: Any) -> None:
    once = one(make()).usage
    server.play = [dict(text=None, finish="content_filter")]
    filtered = one(make())
    assert filtered.outcome is Outcome.AGENT_ERROR and filtered.usage == once
    server.play = [dict(text=None), dict(status=503), dict(text=None), {}]
    answer = one(make())
    assert (answer.text, answer.usage.model_calls) == ("hi", 1)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (300, 30)
    assert answer.usage.cost == pytest.approx(3 * once.cost)
    server.play = [dict(text=None)]
    empty = one(make(max_retries=1))
    assert empty.outcome is Outcome.INFRA_ERROR
    assert (empty.usage.model_calls, empty.usage.completion_tokens) == (1, 20)
    server.play = [dict(status=503)]
    assert one(make(max_retries=1)).usage is None


def test_a_meter_counts_what_was_paid_for_nothing(server: Any, make: Any) -> None:
    server.play = [{}, dict(text=None, finish="content_filter")]
    meter = Metered(make(max_in_flight=1))
    meter.generate([HELLO, HELLO])
    assert (meter.usage.model_calls, meter.usage.completion_tokens) == (2, 20)
    assert meter.usage.cost is not None


def test_shared_calls_bill_a_lost_try_once(server: Any, make: Any) -> None:
    choices = [{"message": {"content": None}}, {"message": {"content": "b"}}]
    usage = {"prompt_tokens": 100, "completion_tokens": 20}
    lost = dict(body={"choices": choices, "usage": usage})
    good = dict(body={"choices": [{"message": {"content": "a"}}, choices[1]], "usage": usage})
    server.play = [lost, good]
    answers = make(share=True).generate([HELLO, HELLO])
    assert [a.text for a in answers] == ["a", "b"]
    assert sum(a.usage.completion_tokens for a in answers) == 40
    assert sum(a.usage.prompt_tokens for a in answers) == 200
    server.play = [lost]
    answers = make(share=True, max_retries=0).generate([HELLO, HELLO])
    assert [a.outcome for a in answers] == [Outcome.INFRA_ERROR] * 2
    assert answers[0].usage.completion_tokens == 20 and answers[1].usage is None
