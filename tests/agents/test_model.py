"""Models: sampling options, the scripted model, and the meter that enforces an episode's budget."""

import pytest

from turnbench.agents.model import (
    Budget,
    Completion,
    Message,
    Metered,
    Prompt,
    Sampling,
    ScriptedModel,
)
from turnbench.envs.record import Failure, Outcome, Usage


def prompts(count: int) -> list[Prompt]:
    return [Prompt((Message("user", f"question {k}"),), seed=k) for k in range(count)]


@pytest.mark.parametrize(
    "wrong", [{"temperature": -0.1}, {"top_p": 0.0}, {"top_p": 1.1}, {"max_tokens": 0}]
)
def test_impossible_sampling_is_refused(wrong) -> None:
    with pytest.raises(ValueError, match="wanted"):
        Sampling(**wrong)


def test_scripted_model_answers_in_order_and_counts_words() -> None:
    model = ScriptedModel(lambda p: f"answer to {p.messages[-1].content}")
    answers = model.generate(prompts(3))
    assert [a.text for a in answers] == [f"answer to question {k}" for k in range(3)]
    assert answers[0].usage == Usage(1, 2, 0, 4)


def test_scripted_model_may_fail_for_one_prompt() -> None:
    failure = Failure(Outcome.INFRA_ERROR, "busy")
    model = ScriptedModel(lambda p: failure if p.seed == 1 else "fine")
    assert model.generate(prompts(3))[1] is failure and model.generate(prompts(3))[2].text == "fine"


def test_meter_bills_answers_and_counts_calls_that_failed() -> None:
    meter = Metered(
        ScriptedModel(lambda p: "two words" if p.seed else Failure(Outcome.INFRA_ERROR, "no"))
    )
    meter.generate(prompts(3))
    meter.generate(prompts(2))
    assert meter.usage == Usage(5, 6, 0, 6) and meter.name == "scripted"


def test_an_answer_that_was_filtered_away_costs_nobody_knows_what() -> None:
    meter = Metered(ScriptedModel(lambda p: Failure(Outcome.AGENT_ERROR, "filtered")))
    meter.generate(prompts(1))
    assert meter.usage == Usage(1, cost=None)


def test_a_prompt_without_room_is_no_call() -> None:
    meter = Metered(ScriptedModel(lambda p: Failure(Outcome.TRUNCATED, "too long")))
    meter.generate(prompts(2))
    assert meter.usage == Usage()


def test_an_unknown_price_makes_the_bill_unknown() -> None:
    prices = iter([0.5, None, 0.25])
    meter = Metered(ScriptedModel(lambda p: Completion("x", usage=Usage(1, cost=next(prices)))))
    meter.generate(prompts(1))
    assert meter.usage.cost == 0.5
    meter.generate(prompts(2))
    assert meter.usage.cost is None and meter.usage.model_calls == 3


def test_the_budget_of_calls_is_kept_to_the_call() -> None:
    asked = []
    meter = Metered(ScriptedModel(lambda p: asked.append(p.seed) or "x"), Budget(model_calls=5))
    assert len(meter.generate(prompts(3))) == 3
    answers = meter.generate(prompts(4))
    assert [isinstance(a, Completion) for a in answers] == [True, True, False, False]
    assert answers[2] == Failure(Outcome.TIMEOUT, "all 5 model calls are used up")
    assert all(isinstance(a, Failure) for a in meter.generate(prompts(2)))
    assert asked == [0, 1, 2, 0, 1] and meter.usage.model_calls == 5


def test_a_budget_of_no_calls_asks_nothing() -> None:
    meter = Metered(ScriptedModel(lambda p: pytest.fail("asked")), Budget(model_calls=0))
    assert [a.outcome for a in meter.generate(prompts(2))] == [Outcome.TIMEOUT] * 2


def test_the_budget_of_seconds(monkeypatch) -> None:
    clock = iter([0.0, 9.9, 10.1])
    monkeypatch.setattr("turnbench.agents.model.time.monotonic", lambda: next(clock))
    meter = Metered(ScriptedModel(lambda p: "x"), Budget(seconds=10))
    assert isinstance(meter.generate(prompts(1))[0], Completion)
    late = meter.generate(prompts(2))
    assert [a.message for a in late] == ["the episode's 10 seconds are used up"] * 2


def test_sampling_is_passed_through() -> None:
    class Recorder(ScriptedModel):
        seen: list = []

        def generate(self, prompts, sampling=None):
            self.seen.append(sampling)
            return super().generate(prompts, sampling)

    model = Recorder(lambda p: "x")
    Metered(model).generate(prompts(1))
    Metered(model).generate(prompts(1), Sampling(temperature=0))
    assert model.seen == [None, Sampling(temperature=0)]
    Metered(model).close()
    assert model.generate(prompts(1)), "the model outlives its meters"


def test_a_model_that_answers_too_few_prompts_or_no_number_is_to_blame() -> None:
    meter = Metered(ScriptedModel(lambda p: "x"))
    meter.model.generate = lambda prompts, sampling=None: []  # type: ignore[method-assign]
    answers = meter.generate(prompts(2))
    assert [a.outcome for a in answers] == [Outcome.INFRA_ERROR] * 2
    assert "0 answers to 2 prompts" in answers[0].message
    nan = Metered(ScriptedModel(lambda p: Completion("x", logprobs=(float("nan"),), ids=(1,))))
    assert nan.generate(prompts(1))[0].outcome is Outcome.INFRA_ERROR
