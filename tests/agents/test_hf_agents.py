"""Agents play TextCraft with a random local model: what is recorded is what the model was given."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from turnbench.agents.best_of_n import BestOfN  # noqa: E402
from turnbench.agents.core import population_from_json, population_to_json  # noqa: E402
from turnbench.agents.hf import HfModel  # noqa: E402
from turnbench.agents.model import Completion, Metered, Sampling  # noqa: E402
from turnbench.agents.react import ReAct  # noqa: E402
from turnbench.envs import make  # noqa: E402
from turnbench.envs.errors import ModelError  # noqa: E402
from turnbench.envs.record import Outcome, Task  # noqa: E402

SAMPLING = Sampling(max_tokens=12)


class Spy(Metered):
    """Keeps all prompts and answers."""

    def __init__(self, model):
        super().__init__(model)
        self.seen = []

    def generate(self, prompts, sampling=None):
        answers = super().generate(prompts, sampling)
        self.seen += zip(prompts, answers, strict=True)
        return answers


@pytest.fixture(scope="module")
def model(checkpoint):
    built = HfModel(checkpoint, sampling=SAMPLING)
    yield built
    built.close()


def play(agent, seed=0, turns=4):
    env = make("turnbench/TextCraft-v0", max_turns=turns)
    task = Task("turnbench/TextCraft-v0", env.tasks("test")[3], "test", 5)
    return agent.solve(env, task, np.random.default_rng(seed))


def check(model, population, seen):
    """The sequences rebuilt from the record are those that were answered, and score the same."""
    given = [(a.prompt_ids, a.ids) for _, a in seen if isinstance(a, Completion)]
    rebuilt = [pair for path in population.trajectories for pair in path.sequences()]
    assert sorted(rebuilt) == sorted(given)
    recorded = [t.tokens.logprobs for path in population.trajectories for t in path.turns]
    for found, wanted in zip(model.logprobs(rebuilt), recorded, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-4, rtol=0)
    again = population_from_json(population_to_json(population))
    assert [p.sequences() for p in again.trajectories] == [
        p.sequences() for p in population.trajectories
    ]


@pytest.mark.parametrize("style", ["plain", "thought"])
@pytest.mark.parametrize("instructions", [True, False])
def test_react_records_what_the_model_was_given(model, style, instructions):
    spy = Spy(model)
    population = play(ReAct(spy, style=style, instructions=instructions))
    check(model, population, spy.seen)
    for turn, (before, answer) in zip(population.best.turns, spy.seen, strict=True):
        assert answer.prompt_ids[: len(before.context)] == before.context
        assert turn.tokens.keep == len(before.context)
        assert turn.text == answer.text
    assert all(prompt.covered for prompt, _ in spy.seen[1:])


@pytest.mark.parametrize("options", [{"history": 0}, {"history": 1}, {"reasoning": "drop"}])
def test_windows_and_dropped_reasoning_are_recorded_too(model, options):
    spy = Spy(model)
    population = play(ReAct(spy, **options), turns=5)
    check(model, population, spy.seen)
    assert not any(prompt.covered for prompt, _ in spy.seen[2:])
    for prompt, answer in spy.seen[2:]:
        assert answer.prompt_ids == model.chat.encode(prompt)


def test_best_of_n_shares_the_first_prompt_and_equals_itself(model):
    spy = Spy(model)
    population = play(BestOfN(spy, n=6, scorer="mean_logprob"))
    check(model, population, spy.seen)
    assert len({path.turns[0].action for path in population.trajectories}) > 1
    assert population.chosen == int(np.argmax(population.scores))
    again = play(BestOfN(model, n=6, scorer="mean_logprob"))
    assert [p.sequences() for p in again.trajectories] == [
        p.sequences() for p in population.trajectories
    ]
    assert again.chosen == population.chosen


def test_a_full_context_truncates_the_episode(make_checkpoint):
    model = HfModel(make_checkpoint(context=700), sampling=SAMPLING)
    path = play(ReAct(model), turns=40).best
    assert path.outcome is Outcome.TRUNCATED and "model's context is 700" in path.failure
    assert path.turns and all(len(p) + len(i) <= 700 for p, i in path.sequences())
    model.close()


def test_a_template_that_rewrites_needs_the_setting_it_names(make_checkpoint):
    template = (
        "{{ messages | length }}{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>"
        "{% endfor %}<|start|>assistant\n"
    )
    model = HfModel(make_checkpoint(template=template), sampling=SAMPLING)
    with pytest.raises(ModelError, match="reasoning: drop"):
        play(ReAct(model))
    for options in ({"reasoning": "drop"}, {"history": 0}):
        spy = Spy(model)
        check(model, play(ReAct(spy, **options)), spy.seen)
    model.close()
