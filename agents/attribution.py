"""Failure attribution: which step of a failed run was the decisive mistake, from a number for each step.

Rules take the scores of a run's steps, in order, and give a step counted from 0. A label is the step
(and, with several agents, the speaker) that people or a world's exact values name.
"""

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from turnbench.envs.errors import UnknownName

Scores = Sequence[float]


def _first_lowest(scores: Scores) -> int:
    return min(range(len(scores)), key=lambda k: scores[k])


def min_cumulative(scores: Scores) -> int:
    """Where the sum so far is lowest."""
    return _first_lowest(list(accumulate(scores)))


def sharpest_drop(scores: Scores) -> int:
    """The lowest score; the first step where none is negative."""
    lowest = _first_lowest(scores)
    return lowest if scores[lowest] < 0 else 0


def sharpest_abs_drop(scores: Scores) -> int:
    """Where the score falls most from the step before; the first step where it never falls or stays."""
    falls = [after - before for before, after in pairwise(scores)]
    if not falls or min(falls) > 0:
        return 0
    return 1 + _first_lowest(falls)


def argmin(scores: Scores) -> int:
    """The lowest score: what is left to measures that have no zero, such as confidence."""
    return _first_lowest(scores)


RULES: dict[str, Callable[[Scores], int]] = {
    "argmin": argmin,
    "min_cumulative": min_cumulative,
    "sharpest_abs_drop": sharpest_abs_drop,
    "sharpest_drop": sharpest_drop,
}


def decisive_step(rule: str, scores: Scores) -> int | None:
    """The step that a rule names; steps without a number are passed over. None where none has one.

    Raises UnknownName.
    """
    if rule not in RULES:
        raise UnknownName("rule of attribution", rule, RULES)
    known = [k for k, score in enumerate(scores) if math.isfinite(score)]
    return known[RULES[rule]([scores[k] for k in known])] if known else None


class Label(NamedTuple):
    """The decisive mistake: its step, counted from 0, and who made it ("" where there is one agent)."""

    step: int
    agent: str = ""


class Verdict(NamedTuple):
    """How well predicted steps meet labels, over all cases; a case without a prediction is wrong, and has
    no part in the mean absolute error (in steps), which is None where no case has one. `agent` is None
    where labels name nobody.
    """

    cases: int
    step: float
    agent: float | None
    mae: float | None


def judge(
    predicted: Sequence[int | None], labels: Sequence[Label], speakers: Sequence[Sequence[str]] = ()
) -> Verdict:
    """Accuracy of steps, by equality of integers, and of agents, who are the predicted steps' speakers.

    `speakers` has each case's speaker by step. Raises ValueError for no cases.
    """
    if not labels:
        raise ValueError("there are no labelled cases")
    pairs = list(zip(predicted, labels, strict=True))
    misses = [abs(step - label.step) for step, label in pairs if step is not None]
    named = (
        [
            step is not None and step < len(who) and who[step] == label.agent
            for (step, label), who in zip(pairs, speakers, strict=True)
            if label.agent
        ]
        if speakers
        else []
    )
    return Verdict(
        len(pairs),
        sum(step == label.step for step, label in pairs) / len(pairs),
        sum(named) / len(named) if named else None,
        math.fsum(misses) / len(misses) if misses else None,
    )


def chance(labels: Sequence[Label], speakers: Sequence[Sequence[str]]) -> Verdict:
    """What guessing a step uniformly would give, in expectation."""
    if not labels:
        raise ValueError("there are no labelled cases")
    cases = list(zip(labels, speakers, strict=True))
    steps = math.fsum(1 / len(who) for _, who in cases) / len(cases)
    named = [who.count(label.agent) / len(who) for label, who in cases if label.agent]
    misses = [math.fsum(abs(k - label.step) for k in range(len(who))) / len(who) for label, who in cases]
    return Verdict(
        len(cases),
        steps,
        math.fsum(named) / len(named) if named else None,
        math.fsum(misses) / len(misses),
    )
