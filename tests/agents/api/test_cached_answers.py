"""The response cache as the model uses it."""

from typing import Any

from turnbench.agents.api import ApiModel
from turnbench.agents.model import Message, Prompt, Sampling
from turnbench.envs.record import Failure

KEY = "sk-very-secret-0123456789"
HELLO = Prompt((Message("user", "hello"),), seed=7)


def one(model: ApiModel, prompt: Prompt = HELLO) -> Any:
    (answer,) = model.generate([prompt])
    return answer


def test_a_hit_is_the_same_answer_unpaid(server: Any, make: Any, tmp_path: Any) -> None:
    server.play = [dict(logprobs={"content": [{"logprob": -0.5}]})]
    first = one(make(cache=str(tmp_path), logprobs=True))
    again = one(make(cache=str(tmp_path), logprobs=True))
    assert len(server.bodies) == 1
    assert (again.text, again.finish, again.logprobs) == (first.text, first.finish, first.logprobs)
    assert (again.usage.cost, again.usage.cache_hits, again.usage.model_calls) == (0.0, 1, 1)
    assert (first.usage.cache_hits, again.usage.prompt_tokens) == (0, first.usage.prompt_tokens)
    assert first.usage.cost and first.usage.cost > 0


def test_every_part_of_the_request_is_in_the_key(server: Any, make: Any, tmp_path: Any) -> None:
    cache = str(tmp_path)
    model = make(cache=cache)
    base = Sampling()
    one(model)
    variants = [
        lambda: model.generate([Prompt(HELLO.messages, seed=8)]),
        lambda: model.generate([Prompt((Message("system", "hello"),), seed=7)]),
        lambda: model.generate([HELLO], Sampling(temperature=0.5)),
        lambda: model.generate([HELLO], Sampling(top_p=0.5)),
        lambda: model.generate([HELLO], Sampling(max_tokens=5)),
        lambda: model.generate([HELLO], Sampling(stop=("x",))),
        lambda: one(make("other", cache=cache)),
        lambda: one(make(cache=cache, extra={"reasoning_effort": "low"})),
        lambda: one(make(cache=cache, base_url=server.url.replace("127.0.0.1", "localhost"))),
    ]
    for count, ask in enumerate(variants, start=2):
        ask()
        assert len(server.bodies) == count
    for ask in variants:
        ask()
    model.generate([HELLO], base)
    assert len(server.bodies) == len(variants) + 1


def test_failures_are_not_cached(server: Any, make: Any, tmp_path: Any) -> None:
    model = make(cache=str(tmp_path), max_retries=0)
    filtered = dict(text=None, finish="content_filter")
    for trouble in (dict(text=None), dict(body="{"), dict(status=500), dict(status=413), filtered):
        server.play = [trouble]
        assert isinstance(one(model), Failure)
    server.play = [dict(text="good")]
    assert one(model).text == "good"


def test_hits_and_misses_mix_in_order(server: Any, make: Any, tmp_path: Any) -> None:
    server.play = lambda body: dict(text=f"{body['seed']}")
    model = make(cache=str(tmp_path))
    prompts = [Prompt(HELLO.messages, seed) for seed in range(6)]
    model.generate(prompts[1::2])
    assert [a.text for a in model.generate(prompts)] == list("012345")
    assert [a.usage.cache_hits for a in model.generate(prompts)] == [1] * 6
    assert len(server.bodies) == 6
    assert model.explain(Prompt(HELLO.messages, 99)).endswith("differs in seed (asked 99, stored 1)")
