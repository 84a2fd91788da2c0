"""Reward models, critics and judges: the numbers that their heads and words stand for."""

import math

import numpy as np
import pytest

from turnbench.agents import reward_models
from turnbench.agents.model import Completion, ScriptedModel
from turnbench.agents.reward_models import (
    Judge,
    ProcessRewardModel,
    RewardModel,
    graded,
    read_turn,
    steps_text,
)
from turnbench.envs.errors import ConfigError, ModelError, Unanswered
from turnbench.envs.record import Failure, Outcome, Task, Trajectory, Turn

RNG = np.random.default_rng


def path(*actions: str) -> Trajectory:
    turns = [Turn(f"Inventory: {k}", action, 0.0) for k, action in enumerate(actions)]
    return Trajectory(Task("e", "0"), tuple(turns), "Goal: craft stick.", Outcome.OK)


PATHS = [path("get 2 oak log", "inventory", "craft 4 stick"), path("inventory")]


def test_heads_by_hand() -> None:
    assert graded([0.7]) == 0.7 and graded([1.0, 3.5]) == 2.5
    assert graded([0.0, 0.0, 0.0, 0.0]) == 3 and graded([90.0, 90.0, 90.0, -900.0]) == pytest.approx(4)
    assert graded([0.0], "ordinal") == 1.5
    with pytest.raises(ModelError, match="binary head has 2 outputs, but this one 3"):
        graded([0.0] * 3, "binary")
    with pytest.raises(ModelError, match="no finite number"):
        graded([math.nan])


@pytest.mark.parametrize("labels", [1, 2, 4])
def test_classifiers_read_each_turns_beginning(make_checkpoint, tmp_path, labels) -> None:
    torch = pytest.importorskip("torch")
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    folder = make_checkpoint()
    config = AutoConfig.from_pretrained(folder, num_labels=labels)
    torch.manual_seed(labels)
    network = AutoModelForSequenceClassification.from_config(config).eval()
    network.save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.save_pretrained(tmp_path)
    scorer = RewardModel(model=str(tmp_path), by_turn=True, device="cpu")
    found = scorer.turns(PATHS)
    assert [len(row) for row in found] == [3, 1]
    rows = [m for t in PATHS[0].turns[:2] for m in (("user", t.observation), ("assistant", t.action))]
    text = tokenizer.apply_chat_template([{"role": r, "content": c} for r, c in rows], tokenize=False)
    with torch.inference_mode():
        logits = network(torch.tensor([tokenizer.encode(text)])).logits[0].tolist()
    assert found[0][1] == pytest.approx(graded(logits), abs=1e-4)
    size = len(tokenizer.encode(text))
    cut = RewardModel(model=str(tmp_path), by_turn=True, device="cpu", max_tokens=size).turns(PATHS)
    assert cut[0][1] == pytest.approx(found[0][1], abs=1e-5) and cut[0][2] != found[0][2]
    assert PATHS[0].info["turns_cut_from_the_left"] == 1
    assert "turns_cut_from_the_left" not in PATHS[1].info
    alone = RewardModel(model=str(tmp_path), device="cpu").turns(PATHS)
    assert "turns_cut_from_the_left" not in PATHS[0].info
    assert alone[0][2] == pytest.approx(found[0][2], abs=1e-5) and math.isnan(alone[0][0])
    scores = scorer.score(PATHS, RNG())
    assert scores == pytest.approx([found[0][2], found[1][0]], abs=1e-5)
    assert PATHS[0].info["turn_scores"]["reward model"] == pytest.approx(found[0], rel=1e-4)


def test_a_missing_reward_model_is_an_error() -> None:
    pytest.importorskip("torch")
    with pytest.raises(ModelError, match="no checkpoint folder"):
        RewardModel(model="nowhere").turns(PATHS)


class Critic:
    """A model whose tokens are words, and which prefers `correct` with a probability by the turn."""

    class chat:  # noqa: N801
        text = staticmethod("".join)
        tokens = staticmethod(lambda word: [word])

    def __init__(self, *words: str) -> None:
        self.words = words

    def generate(self, prompts, sampling):
        self.asked = prompts
        return [Completion("".join(self.words), ids=self.words) for _ in prompts]

    def logprobs(self, pairs):
        p = {"1": 0.9, "2": 0.3, "3": 0.5}
        odds = [p[[w for w in before if w in p][-1]] for before, _ in pairs]
        return [
            [math.log(0.5 * (o if word == ("correct",) else 1 - o))]
            for o, (_, word) in zip(odds, pairs, strict=True)
        ]


def verdicts(monkeypatch, critic) -> list[list[float]]:
    monkeypatch.setattr(reward_models, "shared_model", lambda spec: critic)
    return ProcessRewardModel(model="x").turns(PATHS[:1])


def test_a_critique_is_read_at_its_boxes(monkeypatch) -> None:
    words = ["1", " well: ", "\\boxed{", "correct", "}", "2", " no ", "\\boxed{", "incorrect", "}"]
    critic = Critic(*words)
    (found,) = verdicts(monkeypatch, critic)
    assert found[:2] == pytest.approx([0.9, 0.3]) and math.isnan(found[2])
    assert "Turn 3: craft 4 stick" in critic.asked[0].messages[0].content
    assert ProcessRewardModel(model="x", turn="min").path_score(found) == pytest.approx(0.3)


def test_verdicts_whose_brace_shares_a_token_are_read_as_words(monkeypatch) -> None:
    critic = Critic("1 \\boxed{correct} ", "2 \\boxed{incorrect}")
    assert verdicts(monkeypatch, critic)[0][:2] == [1.0, 0.0]
    (found,) = verdicts(monkeypatch, Critic("no verdict at all"))
    assert all(map(math.isnan, found)) and ProcessRewardModel(model="x").path_score(found) == 0.5


def test_a_critic_from_a_checkpoint_gives_what_its_log_probs_say(checkpoint, monkeypatch) -> None:
    """A random network says no verdict by itself, so its answer is put into its mouth."""
    pytest.importorskip("torch")
    from turnbench.agents.hf import HfModel

    model = HfModel(checkpoint)
    ids = tuple(model.chat.tokens("ok \\boxed{")) + tuple(model.chat.tokens("correct}"))
    before = tuple(model.chat.tokens("user"))
    answer = Completion(model.chat.text(ids), prompt_ids=before, ids=ids)
    silent = Completion("ok", prompt_ids=before, ids=tuple(model.chat.tokens("ok")))
    monkeypatch.setattr(reward_models, "shared_model", lambda spec: model)
    monkeypatch.setattr(
        model, "generate", lambda prompts, sampling: [answer, silent, answer][: len(prompts)]
    )
    found = ProcessRewardModel(model=checkpoint).turns([PATHS[0], PATHS[1]])
    cut = before + tuple(model.chat.tokens("ok \\boxed{"))
    logs = [
        sum(model.logprobs([(cut, tuple(model.chat.tokens(w)))])[0]) for w in ("correct", "incorrect")
    ]
    assert found[0][0] == pytest.approx(
        math.exp(logs[0]) / (math.exp(logs[0]) + math.exp(logs[1])), abs=1e-4
    )
    assert all(map(math.isnan, [*found[0][1:], *found[1]]))
    assert [len(numbers) for numbers in found] == [len(path.turns) for path in PATHS[:2]]
    model.close()


def test_a_judge_gives_a_probability_and_a_turn() -> None:
    answers = {"Probability": "0.25", "Turn:": "Turn 2."}

    def answer(prompt):
        last = prompt.messages[0].content.rsplit("\n\n", 1)[1]
        return next(text for start, text in answers.items() if last.startswith(start))

    judge = Judge(ScriptedModel(answer))
    assert judge.score(PATHS, RNG()) == [0.25, 0.25]
    assert judge.decisive(PATHS) == [1, None]
    answers["Probability"] = "hard to say"
    assert judge.score(PATHS, RNG()) == [0.25, 0.25]  # nothing is asked twice
    judge = Judge(ScriptedModel(answer))
    assert judge.score(PATHS, RNG()) == [0.5, 0.5] and math.isnan(judge.turns(PATHS)[0][-1])
    silent = Judge(ScriptedModel(lambda p: Failure(Outcome.TIMEOUT, "no time is left")))
    assert silent.score(PATHS, RNG()) == [0.5, 0.5] and silent.decisive(PATHS) == [None, None]
    busy = Judge(ScriptedModel(lambda p: Failure(Outcome.INFRA_ERROR, "busy"), name="j"))
    for ask in (busy.turns, busy.decisive):
        with pytest.raises(Unanswered, match="j gave no answer: busy"):
            ask(PATHS)
    with pytest.raises(ConfigError, match="'model'"):
        Judge()


def test_turns_are_read_as_whole_numbers() -> None:
    assert read_turn("3", 3) == 2 and read_turn("It was turn 1, I think", 3) == 0
    assert read_turn("4", 3) is None and read_turn("2.5", 3) is None and read_turn(None, 3) is None


def test_what_a_critic_reads() -> None:
    text = steps_text(PATHS[0])
    assert text.startswith("Task: Inventory: 0\nTurn 1: get 2 oak log\nObservation: Inventory: 1")
    assert text.endswith("Observation: Goal: craft stick.")
