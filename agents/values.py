"""Value functions: what a path's whole episode will return, for search that is steered by it."""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from turnbench.agents import check_options
from turnbench.agents.model import Answer, Completion, Message, Metered, Model, Prompt, Sampling
from turnbench.agents.rollout import Rollout
from turnbench.agents.sharing import shared_model
from turnbench.envs.errors import ConfigError, UnknownName
from turnbench.envs.record import Turn, Usage

CARD = "value.json"  # the file that makes a folder a trained value function
Spec = str | Mapping[str, Any]


class Value(ABC):
    """Estimates the return of the whole episode, in units of reward.

    What a path has earned so far is part of it. In AMC's terms (nats, V includes the reward of its
    own state) it is beta V(s_t) plus the rewards before t, so that log w_t = returns / beta - log Z.
    `oracle` tells whether true rewards are looked at, `fallbacks` how many estimates could not be had.
    """

    name = ""
    oracle = False
    fallbacks = 0

    @property
    def usage(self) -> Usage:
        """What was spent on models other than the agent's own."""
        return Usage()

    def check(self, env_id: str) -> None:
        """Refuse a world that this value function isn't for. Raises ConfigError."""
        return None

    @abstractmethod
    def returns(self, rollouts: Sequence[Rollout]) -> list[float]:
        """One estimate for each rollout, ended ones included; all are asked for at once."""


class Constant(Value):
    """Knows nothing: the same return for every path."""

    name = "constant"

    def returns(self, rollouts: Sequence[Rollout]) -> list[float]:
        """Zeros."""
        return [0.0] * len(rollouts)


class Collected(Value):
    """The rewards so far, as if nothing more were to come."""

    name = "collected"
    oracle = True

    def returns(self, rollouts: Sequence[Rollout]) -> list[float]:
        """The sums of true rewards."""
        return [rollout.ret for rollout in rollouts]


class Computed(Value):
    """A value computed by a function of the rollout: for tests and for worlds solved exactly."""

    name = "computed"

    def __init__(self, function: Callable[[Rollout], float], *, oracle: bool = False) -> None:
        self.function, self.oracle = function, oracle

    def returns(self, rollouts: Sequence[Rollout]) -> list[float]:
        """The function's values."""
        return [self.function(rollout) for rollout in rollouts]


def estimates(value: Value, rollouts: Sequence[Rollout]) -> list[float]:
    """`value.returns`, checked. Raises ConfigError that names the value function."""
    returns = value.returns(rollouts) if rollouts else []
    if len(returns) != len(rollouts):
        raise ConfigError(
            f"value function {value.name!r}: {len(returns)} values for {len(rollouts)} paths"
        )
    for number, rollout in zip(returns, rollouts, strict=True):
        if not math.isfinite(number):
            raise ConfigError(
                f"value function {value.name!r} returned {number} for task {rollout.task.id} "
                f"after {len(rollout.turns)} turns; every value must be a finite number"
            )
    return returns


# --- the state as text ----------------------------------------------------------------------------


def state_text(turns: Sequence[Turn], now: str, history: int | None = None) -> str:
    """A path as a value function reads it (AMC, appendix): the task, the last rounds, the state now.

    The first observation is the task; `history` bounds the rounds shown, None shows all.
    """
    first = turns[0].observation if turns else now
    shown = len(turns) if history is None else min(history, len(turns))
    rounds = [
        (f"Round {k} - STATE: {turn.observation}\n" if k > 1 else f"Round {k} - ")
        + f"ACTION: {turn.action}"
        for k, turn in list(enumerate(turns, start=1))[len(turns) - shown :]
    ]
    parts = ["=== INSTRUCTION ===", first, "=== HISTORY ===", *rounds, "=== NOW ===", f"[STATE] {now}"]
    return "\n".join(parts)


# --- a model that is asked for a score ------------------------------------------------------------

SCORE = """\
You judge how a task will turn out for an agent that is in the middle of it. You are shown the task, \
the agent's latest rounds and what it sees now. Say how much of the task it will have achieved at \
the end: 0 if it will fail altogether, 1 if it will succeed in full, a number between them for partial \
success or doubt. Your whole answer must be that one decimal number."""
REFLECT = """\
You review an agent that is in the middle of a task. You are shown the task, the agent's latest rounds \
and what it sees now. Write a few sentences on what has been achieved, what is left to do and whether \
the agent is on the right way. Then finish with a line of the form "Final score: k", where k is a whole \
number from 1 (hopeless) to 10 (certain to succeed)."""


class ZeroShot(Value):
    """A model that is asked for a score, without any training.

    `model` is the agent's own unless a specification of another is given. `style`: "score" wants a
    number from 0 to 1; "reflect" thinks first and gives a whole number up to 10, as Fleet of Agents
    does. `history` bounds the rounds shown. An answer without a readable number, or no answer, is
    counted and stands for the score `fallback`. Scores are stretched to the world's range of returns.
    """

    def __init__(
        self,
        asked: Model,
        *,
        model: Mapping[str, Any] | None = None,
        style: Literal["score", "reflect"] = "score",
        history: int | None = 20,
        fallback: float = 0.5,
    ) -> None:
        if style not in STYLES:
            raise UnknownName("style of zero-shot value", style, STYLES)
        if not 0 <= fallback <= 1:
            raise ConfigError(f"fallback is {fallback}; it must be a score from 0 to 1")
        self.name = f"zero_shot ({style})"
        self._own = None if model is None else Metered(shared_model(model))
        self.asked = self._own or asked
        self.style, self.history, self.fallback = style, history, fallback
        self._scores: dict[str, float] = {}

    @property
    def usage(self) -> Usage:
        """What the model given in place of the agent's own cost."""
        return Usage() if self._own is None else self._own.usage

    def returns(self, rollouts: Sequence[Rollout]) -> list[float]:
        """Stretched scores; each different state is asked about once."""
        texts = [self._text(rollout) for rollout in rollouts]
        new = [text for text in dict.fromkeys(texts) if text not in self._scores]
        preamble, _, tokens = STYLES[self.style]
        asked = [Prompt((Message("user", f"{preamble}\n\n{text}\n\nScore:"),)) for text in new]
        answers = self.asked.generate(asked, Sampling(0.0, 1.0, tokens)) if asked else []
        self._scores.update(zip(new, map(self._read, answers), strict=True))
        spans = [rollout.env.return_range or (0.0, 1.0) for rollout in rollouts]
        pairs = zip(texts, spans, strict=True)
        return [low + self._scores[text] * (high - low) for text, (low, high) in pairs]

    def _text(self, rollout: Rollout) -> str:
        state = state_text(rollout.turns, rollout.observation, self.history)
        return f"{rollout.env.instructions}\n\n{state}".strip()

    def _read(self, answer: Answer) -> float:
        score = STYLES[self.style][1](answer.text) if isinstance(answer, Completion) else None
        if score is None:
            self.fallbacks += 1
            return self.fallback
        return score


_NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
_FIRST = re.compile(r"(?<![\w.,])" + _NUMBER + r"(?![\w%/]|[.,]\d)")
_FINAL = re.compile(r"final score:?\W*" + _NUMBER + r"(?![\w%]|[.,]\d|/(?!\s*10\b))", re.IGNORECASE)


def read_score(text: str) -> float | None:
    """The first number in `text` if it is from 0 to 1, else None: a missing number is no 0."""
    found = _FIRST.search(text)
    return _in_range(found, 1.0)


def read_final_score(text: str) -> float | None:
    """A tenth of the last "Final score: k" in `text` if k is from 0 to 10, else None."""
    found = list(_FINAL.finditer(text))
    return _in_range(found[-1] if found else None, 10.0)


def _in_range(found: re.Match[str] | None, highest: float) -> float | None:
    number = math.nan if found is None else float(found[1])
    return number / highest if 0 <= number <= highest else None


STYLES: dict[str, tuple[str, Callable[[str], float | None], int]] = {
    "score": (SCORE, read_score, 10),
    "reflect": (REFLECT, read_final_score, 256),
}


# --- by name --------------------------------------------------------------------------------------

VALUES: dict[str, type[Value]] = {
    "collected": Collected,
    "constant": Constant,
    "zero_shot": ZeroShot,
}


def is_value_folder(name: str) -> bool:
    """Whether `name` is the folder of a trained value function."""
    return (Path(name) / CARD).is_file()


def make_value(spec: Value | Spec, model: Model) -> Value:
    """The value function that an agent's option describes.

    A name, the folder of a trained one, or a mapping of `value` (either of these) and its options.
    `model` is the agent's, for those that ask one. Raises UnknownName, ConfigError, ModelError.
    """
    if isinstance(spec, Value):
        return spec
    options = {"value": spec} if isinstance(spec, str) else dict(spec)
    name = options.pop("value", None)
    if not isinstance(name, str):
        raise ConfigError(
            f"a value function needs the key 'value': a folder or one of {', '.join(VALUES)}"
        )
    if name in VALUES:
        cls = VALUES[name]
        check_options(f"value function {name!r}", cls, options, given={"asked"})
        return cls(model, **options) if cls is ZeroShot else cls(**options)
    if not is_value_folder(name):
        folder = Path(name).is_dir()
        raise (
            ConfigError(f"{name} holds no {CARD}")
            if folder
            else UnknownName("value function (nor a folder)", name, VALUES)
        )
    if options:
        raise ConfigError(f"the value function in {name} takes no options, but got {', '.join(options)}")
    from turnbench.agents.regression import trained_value

    return trained_value(Path(name).resolve())
