"""How blame is read from text and scored, and what a uniform guess would score.

The rule is equality: of agents' names without asides, whatever the case, and of steps as numbers. With
`compat` it is that of Who&When's published scorer: the labelled text need only stand somewhere in the
predicted one, so that step 1 is hit by 12.
"""

import json
import re
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

from turnbench.envs.blame_log import Log, plain_agent

NOT_BLAMED = frozenset({"human", "user", "computer_terminal", "computerterminal"})
"""Who takes steps but is no agent: a uniform guess leaves them out."""

_OBJECT = re.compile(r"\{[^{}]{1,1000}\}")
_AGENT = re.compile(
    r"agent(?:[ _]name)?[\"'*]*[ \t]*[:=][ \t\"'*]*([^\n\"',}*][^\n\"',}]*)", re.IGNORECASE
)
_STEP = re.compile(
    r"step(?:[ _]number)?[\"'*]*[ \t]*[:=][ \t\"'*]*(?:step )?(-?[0-9][^\n\"',}*]*)", re.IGNORECASE
)


class Verdict(NamedTuple):
    """Whom an answer blames for which step, as it was written; "" where it doesn't say."""

    agent: str = ""
    step: str = ""


class Hits(NamedTuple):
    """Whether a verdict names the agent and the step."""

    agent: bool
    step: bool


class Accuracy(NamedTuple):
    """Shares of `total` logs: agent right, step right, both; `missing` verdicts count as wrong."""

    agent: float
    step: float
    both: float
    total: int
    missing: int


def read_verdict(text: str) -> Verdict:
    """The verdict in a text: its last JSON object {"agent", "step"}; or else what follows the first
    "Agent Name:" and the first "Step Number:", as in Who&When's answers.
    """
    for body in reversed(_OBJECT.findall(text)):
        try:
            row = json.loads(body)
            return Verdict(str(row["agent"]).strip(), str(row["step"]).strip())
        except (ValueError, KeyError, TypeError):
            continue
    agent, step = _AGENT.search(text), _STEP.search(text)
    return Verdict(agent[1].strip(" .") if agent else "", step[1].strip(" .") if step else "")


def hits(verdict: Verdict, agent: str, step: int, compat: bool = False) -> Hits:
    """Compare a verdict with a label."""
    if compat:
        return Hits(agent in verdict.agent, str(step) in verdict.step)
    same = plain_agent(verdict.agent).casefold() == plain_agent(agent).casefold()
    return Hits(
        same, re.fullmatch(r"0*[0-9]{1,9}", verdict.step) is not None and int(verdict.step) == step
    )


def accuracy(verdicts: Sequence[Verdict | None], logs: Sequence[Log], compat: bool = False) -> Accuracy:
    """Score one verdict for each log; None is a missing one."""
    if len(verdicts) != len(logs) or not logs:
        raise ValueError(f"{len(verdicts)} verdicts for {len(logs)} logs")
    pairs = zip(verdicts, logs, strict=True)
    found = [hits(v or Verdict(), log.agent, log.step, compat) for v, log in pairs]
    return Accuracy(
        fmean(hit.agent for hit in found),
        fmean(hit.step for hit in found),
        fmean(hit.agent and hit.step for hit in found),
        len(found),
        sum(v is None or not (v.agent or v.step) for v in verdicts),
    )


def uniform(logs: Iterable[Log], compat: bool = False) -> tuple[float, float]:
    """The expected agent and step accuracy of a uniform guess among a log's agents and steps."""
    chances = [
        (uniform_agent(log.agents, log.agent), uniform_step(len(log), log.step, compat)) for log in logs
    ]
    return fmean(agent for agent, _ in chances), fmean(step for _, step in chances)


def uniform_agent(agents: Iterable[str], agent: str) -> float:
    """The chance that one of the agents, drawn uniformly, is the labelled one."""
    known = {plain_agent(one).casefold() for one in agents} - NOT_BLAMED
    return 1 / len(known) if plain_agent(agent).casefold() in known else 0.0


def uniform_step(steps: int, step: int, compat: bool = False) -> float:
    """The chance that one of the steps, drawn uniformly, is the labelled one (or counts as it)."""
    return fmean(str(step) in str(k) if compat else step == k for k in range(steps))
