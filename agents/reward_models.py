"""Trained judges of paths, as Progress Advantage is compared with: reward models and a critic in words.

`RewardModel` has a classification head on the last token: one output is the score; two are the log-odds
of the second class; more are thresholds of an ordinal scale, whose expected grade 1 + sum sigmoid(logit)
is the score (WildReward). `ProcessRewardModel` writes a critique that judges each turn in a \\boxed{} and
scores a turn by P("correct") against P("incorrect") there (ThinkPRM). `Judge` asks any model for the
probability of success. Local ones need the extra `local`.
"""

import math
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from turnbench.agents.model import Answer, Completion, Message, Metered, Model, Prompt, Sampling
from turnbench.agents.readers import CUT
from turnbench.agents.sharing import shared, shared_model
from turnbench.agents.transcripts import conversation
from turnbench.agents.turn_scores import TurnScorer
from turnbench.agents.values import read_score
from turnbench.envs.errors import ConfigError, ModelError, Unanswered, UnknownName, Unscored
from turnbench.envs.record import Failure, Outcome, Trajectory, Usage

HEADS = ("auto", "scalar", "binary", "ordinal")
CARD = "reward_model.json"  # the file that makes a folder a trained reward model's, with its `model`
PASS_TOKENS = 4096


def is_reward_folder(folder: str) -> bool:
    """Whether a folder is a trained reward model's."""
    return Path(folder, CARD).is_file()


class RewardModel(TurnScorer):
    """A sequence classifier from a checkpoint folder, or the run folder of a trained one, asked about a path
    after each of its turns.

    `head`: "scalar" (one output), "binary" (two), "ordinal" (any number), or "auto" by their number.
    `by_turn`: whether every turn gets a number, or the last one alone. `max_tokens` bounds the text,
    which is cut from the left; a path's info tells how many of its turns were read so. A path's score is
    its last turn's number.
    """

    name, turn = "reward model", "last"

    def __init__(
        self,
        *,
        model: str,
        head: Literal["auto", "scalar", "binary", "ordinal"] = "auto",
        by_turn: bool = False,
        max_tokens: int | None = None,
        device: str = "auto",
    ) -> None:
        if head not in HEADS:
            raise UnknownName("head of a reward model", head, HEADS)
        self.model, self.head, self.by_turn = model, head, by_turn
        self.max_tokens, self.device = max_tokens, device

    def turns(self, paths: Sequence[Trajectory]) -> list[list[float]]:
        """One number a turn; not a number where a turn wasn't asked about. Raises ModelError."""
        folder = f"{self.model}/model" if is_reward_folder(self.model) else self.model
        spec = {"path": folder, "device": self.device}
        classifier = shared("classifier", spec, lambda: _Classifier(folder, self.device))
        asked = [
            (k, end)
            for k, path in enumerate(paths)
            for end in range(1, len(path.turns) + 1)
            if self.by_turn or end == len(path.turns)
        ]
        texts = [beginning(paths[k], end) for k, end in asked]
        found = [[math.nan] * len(path.turns) for path in paths]
        for path in paths:
            path.info.pop(CUT, None)
        for (k, end), read in zip(asked, classifier.logits(texts, self.max_tokens), strict=True):
            found[k][end - 1] = graded(read.logits, self.head)
            if read.cut:
                paths[k].info[CUT] = int(paths[k].info.get(CUT, 0)) + 1
        return found


def graded(logits: Sequence[float], head: str = "auto") -> float:
    """The score that a head's outputs stand for. Raises ModelError where they don't fit the head, and
    Unscored where they are no numbers."""
    wanted = {1: "scalar", 2: "binary"}.get(len(logits), "ordinal") if head == "auto" else head
    sizes = {"scalar": 1, "binary": 2}
    if sizes.get(wanted, len(logits)) != len(logits) or not logits:
        raise ModelError(f"a {wanted} head has {sizes[wanted]} outputs, but this one {len(logits)}")
    if not all(map(math.isfinite, logits)):
        raise Unscored("the reward model gave what is no finite number")
    if wanted == "scalar":
        return logits[0]
    if wanted == "binary":
        return logits[1] - logits[0]
    return 1 + math.fsum(1 / (1 + math.exp(-max(-700.0, logit))) for logit in logits)


def beginning(path: Trajectory, turns: int) -> list[dict[str, str]]:
    """The conversation up to and with a turn's action, as a reward model reads it."""
    rows = conversation(path).messages[: 2 * turns]
    return [{"role": m.role, "content": m.content} for m in rows]


def classifier_ids(tokenizer: Any, rows: list[dict[str, str]]) -> list[int]:
    """A conversation's token ids: by the chat template where there is one, else as plain lines."""
    if getattr(tokenizer, "chat_template", None):
        text = tokenizer.apply_chat_template(rows, tokenize=False)
    else:
        text = "".join(f"[{row['role']}]: {row['content']}\n" for row in rows)
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False, verbose=False)
    return ids


def classify(network: Any, rows: Sequence[Sequence[int]]) -> Any:
    """A classifier's outputs for token ids, as a tensor of shape (rows, outputs)."""
    import torch

    width, pad = max(map(len, rows)), network.config.pad_token_id or 0
    ids = torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    made = network(input_ids=ids.to(network.device), attention_mask=mask.to(network.device))
    return made.logits.float()


class _Read(NamedTuple):
    """A head's outputs for a text, and whether its beginning was cut off."""

    logits: list[float]
    cut: bool


class _Classifier:
    """A checkpoint with a classification head, for any number of threads."""

    def __init__(self, path: str, device: str) -> None:
        from turnbench.agents.hf import context_of, load_classifier

        self.tokenizer, self.network = load_classifier(path, device)
        self.context = context_of(self.network.config)
        self.lock = threading.Lock()

    def logits(self, texts: Sequence[list[dict[str, str]]], limit: int | None) -> list[_Read]:
        """The head's outputs for each conversation."""
        with self.lock:
            whole = [classifier_ids(self.tokenizer, text) for text in texts]
            ids = [row[-self._bound(limit, len(row)) :] for row in whole]
            order = sorted(range(len(ids)), key=lambda k: len(ids[k]))
            found: list[list[float]] = [[] for _ in ids]
            for batch in self._batches(order, ids):
                for k, row in zip(batch, self._pass([ids[k] for k in batch]), strict=True):
                    found[k] = row
            return [_Read(x, len(a) > len(b)) for x, a, b in zip(found, whole, ids, strict=True)]

    def _bound(self, limit: int | None, size: int) -> int:
        return min((n for n in (limit, self.context) if n), default=size)

    def _batches(self, order: Sequence[int], ids: Sequence[Sequence[int]]) -> list[list[int]]:
        """Neighbours in length; without a padding token each is alone."""
        batches: list[list[int]] = []
        pads = self.network.config.pad_token_id is not None
        for k in order:
            if not batches or not pads or len(ids[k]) * (len(batches[-1]) + 1) > PASS_TOKENS:
                batches.append([])
            batches[-1].append(k)
        return batches

    def _pass(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        import torch

        with torch.inference_mode():
            return classify(self.network, rows).tolist()  # type: ignore[no-any-return]


# --- a critic in words ----------------------------------------------------------------------------

CRITIQUE = """\
You are given a task and an agent's turns. Review each turn in order: say in a sentence or two whether it \
brings the agent nearer to the goal, and end the review of each turn with \\boxed{correct} or \
\\boxed{incorrect}. Stop after the last turn."""
_BOXED = re.compile(r"\\boxed\{\s*(correct|incorrect)\s*\}", re.IGNORECASE)
BOX = "\\boxed{"


class InWords(TurnScorer):
    """What a model wrote is read as probabilities; a turn without one is not a number. What it answered
    isn't asked for again."""

    def __init__(self) -> None:
        self._answered: dict[str, Answer] = {}

    def answers(self, model: Model, texts: Sequence[str], sampling: Sampling) -> list[Answer]:
        """A model's answers. Raises Unanswered where its server fails, of which no score may depend."""
        new = [text for text in dict.fromkeys(texts) if text not in self._answered]
        asked = [Prompt((Message("user", text),)) for text in new]
        lost = None
        for text, answer in zip(new, model.generate(asked, sampling) if asked else [], strict=True):
            if isinstance(answer, Failure) and answer.outcome is Outcome.INFRA_ERROR:
                lost = answer
            else:
                self._answered[text] = answer
        if lost is not None:
            raise Unanswered(f"no score, as {model.name} gave no answer: {lost.message}")
        return [self._answered[text] for text in texts]

    def path_score(self, numbers: Sequence[float]) -> float:
        """Of the turns that were judged; 0.5 where none was."""
        judged = [number for number in numbers if math.isfinite(number)]
        return super().path_score(judged) if judged else 0.5


class ProcessRewardModel(InWords):
    """A critic that thinks in words, in ThinkPRM's form: a checkpoint (`path`) under transformers.

    One critique a path; a turn without a verdict has no number, and a path without any scores 0.5.
    `turn`: how turns make a path's score. `max_tokens` bounds the critique.
    """

    name, strip = "process reward model", "process reward model [probability]"

    def __init__(
        self,
        *,
        model: str,
        turn: str = "last",
        max_tokens: int = 1024,
        temperature: float = 0.0,
        device: str = "auto",
    ) -> None:
        super().__init__()
        self.model, self.turn, self.device = model, turn, device
        self.sampling = Sampling(temperature, 1.0, max_tokens)

    def turns(self, paths: Sequence[Trajectory]) -> list[list[float]]:
        """P(correct) / (P(correct) + P(incorrect)) at each turn's verdict. Raises ModelError, Unanswered."""
        model = shared_model({"backend": "hf", "path": self.model, "device": self.device})
        texts = [critique_prompt(path) for path in paths]
        answers = self.answers(model, texts, self.sampling)
        told = [_verdicts(model, a) if isinstance(a, Completion) else _Verdicts() for a in answers]
        odds = iter(_odds(model, [ids for verdicts in told for ids in verdicts.before]))
        found = []
        for verdicts, path in zip(told, paths, strict=True):
            numbers = [next(odds) for _ in verdicts.before] or [float(word) for word in verdicts.correct]
            found.append([*numbers, *[math.nan] * len(path.turns)][: len(path.turns)])
        return found


def critique_prompt(path: Trajectory) -> str:
    """What a critic is asked about a path."""
    return f"{CRITIQUE}\n\n{steps_text(path)}"


def steps_text(path: Trajectory) -> str:
    """The task and the numbered turns, as a critic or a judge reads them."""
    rows = []
    for k, turn in enumerate(path.turns, start=1):
        rows.append(f"{'Task' if k == 1 else 'Observation'}: {turn.observation}\nTurn {k}: {turn.text}")
    return "\n".join([*rows, f"Observation: {path.final}"])


def _boxes(model: Any, ids: Sequence[int]) -> list[int]:
    """How many tokens stand before each verdict, where the brace ends a token."""
    text = [model.chat.text(ids[:k]) for k in range(1, len(ids) + 1)]
    return [
        k
        for k, said in enumerate(text, start=1)
        if said.endswith(BOX) and k < len(ids) and _BOXED.match(text[-1][len(said) - len(BOX) :])
    ]


class _Verdicts(NamedTuple):
    """Whether each turn is called correct, and the ids before each verdict: none where a verdict's brace shares
    a token with what follows, so that its word is what there is."""

    correct: Sequence[bool] = ()
    before: Sequence[tuple[int, ...]] = ()


def _verdicts(model: Any, answer: Completion) -> _Verdicts:
    words = [verdict.lower() == "correct" for verdict in _BOXED.findall(answer.text)]
    places = _boxes(model, answer.ids)
    if len(places) != len(words):
        return _Verdicts(words)
    return _Verdicts(words, [answer.prompt_ids + answer.ids[:k] for k in places])


def _odds(model: Any, before: Sequence[tuple[int, ...]]) -> list[float]:
    """P("correct") / (P("correct") + P("incorrect")) after each; all at once, as they share beginnings."""
    words = [tuple(model.chat.tokens(word)) for word in ("correct", "incorrect")]
    rows = model.logprobs([(ids, word) for ids in before for word in words]) if before else []
    sums = [math.fsum(row) for row in rows]
    return [
        1 / (1 + math.exp(min(700.0, wrong - right)))
        for right, wrong in zip(sums[::2], sums[1::2], strict=True)
    ]


# --- any model as a judge -------------------------------------------------------------------------

JUDGE = """\
You judge whether an agent has solved its task. You are shown the task, the agent's turns and what it saw \
last. Answer with the probability that the task was solved: one decimal number from 0 to 1 and nothing \
else."""
WHICH = """\
An agent has failed its task. You are shown the task and its numbered turns. Which turn was the decisive \
mistake, without which the task could have been solved? Answer with that turn's number and nothing else."""
_TURN = re.compile(r"(?<![\w.])(\d{1,6})(?![\w%]|[.,]\d)")


class Judge(InWords):
    """A model that is asked for a path's probability of success, without training.

    `model`: its specification, as in a suite; the agent's own if left out. The number stands at
    the last turn; an answer without one scores 0.5.
    """

    name, strip, turn = "judge", "judge [probability]", "last"

    def __init__(self, asked: Model | None = None, *, model: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        if model is None and asked is None:
            raise ConfigError("the scorer 'judge' needs the option 'model'")
        self._own = None if model is None else Metered(shared_model(model))
        self.asked: Any = self._own or asked

    @property
    def usage(self) -> Usage:
        """What the model given in place of the agent's own cost."""
        return Usage() if self._own is None else self._own.usage

    def turns(self, paths: Sequence[Trajectory]) -> list[list[float]]:
        """The probability at the last turn; not a number before. Raises ModelError, Unanswered."""
        said = self._ask([f"{JUDGE}\n\n{steps_text(path)}\n\nProbability:" for path in paths])
        found = []
        for path, text in zip(paths, said, strict=True):
            number = read_score(text or "")
            last = [math.nan if number is None else number] if path.turns else []
            found.append([math.nan] * (len(path.turns) - 1) + last)
        return found

    def decisive(self, paths: Sequence[Trajectory]) -> list[int | None]:
        """Which turn (from 0) it holds for the decisive mistake; None where it doesn't say. Raises as
        `turns` does."""
        said = self._ask([f"{WHICH}\n\n{steps_text(path)}\n\nTurn:" for path in paths])
        return [read_turn(text, len(path.turns)) for text, path in zip(said, paths, strict=True)]

    def _ask(self, texts: Sequence[str]) -> list[str | None]:
        answers = self.answers(self.asked, texts, Sampling(0.0, 1.0, 16))
        return [answer.text if isinstance(answer, Completion) else None for answer in answers]


def read_turn(text: str | None, turns: int) -> int | None:
    """The first whole number in `text`, counted from 0, if there is such a turn."""
    found = _TURN.search(text or "")
    number = int(found[1]) - 1 if found else -1
    return number if 0 <= number < turns else None
