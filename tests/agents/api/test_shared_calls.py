"""Samples of one conversation in one call: what is sent, paid for and kept."""

import json
from typing import Any

import pytest

from turnbench.agents.model import Completion, Message, Prompt
from turnbench.agents.replies import split_choices
from turnbench.envs.record import Failure, Outcome, Usage


def asked(text: str, seed: int) -> Prompt:
    return Prompt((Message("user", text),), seed)


def several(body: dict[str, Any]) -> dict[str, Any]:
    """A server that knows `n`: choice k says the prompt and its own number."""
    said = body["messages"][0]["content"]
    choices = [
        {"index": k, "message": {"role": "assistant", "content": f"{said} {k}"}, "finish_reason": "stop"}
        for k in range(body.get("n", 1))
    ]
    usage = {"prompt_tokens": 100, "completion_tokens": 7 * len(choices)}
    return {"body": {"choices": choices, "usage": usage}}


PROMPTS = [asked("a", 1), asked("b", 2), asked("a", 3), asked("a", 4)]


def test_samples_of_one_conversation_share_a_call(server: Any, make: Any) -> None:
    server.play = several
    answers = make(share=True).generate(PROMPTS)
    assert [a.text for a in answers] == ["a 0", "b 0", "a 1", "a 2"]
    assert sorted((b["messages"][0]["content"], b.get("n"), b["seed"]) for b in server.bodies) == [
        ("a", 3, 1),
        ("b", None, 2),
    ]
    bill = sum((a.usage for a in answers), Usage())
    assert (bill.model_calls, bill.prompt_tokens, bill.completion_tokens) == (4, 200, 28)
    assert bill.shared_tokens == 200
    assert bill.cost == pytest.approx((200 * 0.15 + 28 * 0.60) / 1e6)


def test_without_the_option_every_prompt_is_a_call(server: Any, make: Any) -> None:
    server.play = several
    answers = make().generate(PROMPTS)
    assert len(server.bodies) == 4
    assert sum(a.usage.shared_tokens for a in answers) == 0


def test_a_server_that_ignores_n_is_asked_one_by_one(server: Any, make: Any) -> None:
    server.play = lambda body: several({**body, "n": 1})
    model = make(share=True)
    assert [a.text for a in model.generate(PROMPTS)] == ["a 0", "b 0", "a 0", "a 0"]
    assert len(server.bodies) == 4
    model.generate(PROMPTS)
    assert all("n" not in body for body in server.bodies[4:])


def test_each_sample_has_its_own_entry_in_the_cache(server: Any, make: Any, tmp_path: Any) -> None:
    server.play = several
    first = make(share=True, cache=str(tmp_path)).generate(PROMPTS)
    again = make(share=True, cache=str(tmp_path)).generate(PROMPTS)
    assert len(server.bodies) == 2
    assert [a.text for a in again] == [a.text for a in first]
    assert [a.usage.cache_hits for a in again] == [1] * 4


def test_a_call_that_fails_fails_for_all_its_samples(server: Any, make: Any) -> None:
    server.play = lambda body: {"status": 500} if "n" in body else several(body)
    answers = make(share=True, max_retries=1).generate(PROMPTS)
    assert [isinstance(a, Failure) for a in answers] == [True, False, True, True]
    assert answers[0].outcome is Outcome.INFRA_ERROR


def test_trouble_passes_for_the_whole_group(server: Any, make: Any) -> None:
    tries: list[int] = []

    def play(body: dict[str, Any]) -> dict[str, Any]:
        tries.append(body.get("n", 1))
        return {"status": 503} if len(tries) == 1 else several(body)

    server.play = play
    answers = make(share=True).generate([asked("a", k) for k in range(3)])
    assert all(isinstance(a, Completion) for a in answers)
    assert tries == [3, 3]


@pytest.mark.parametrize("text", ["", "no JSON", "[]", "{}", '{"choices": null}', '{"choices": [1]}'])
def test_what_cannot_be_split_is_left_as_it_is(text: str) -> None:
    assert split_choices(text, 3) == [text]


def test_more_choices_than_asked_for_are_dropped() -> None:
    body = json.dumps({"choices": [{"index": k} for k in range(5)]})
    assert [json.loads(p)["choices"] for p in split_choices(body, 2)] == [[{"index": 0}], [{"index": 1}]]
