"""BFCL v4 multi-turn: a user's requests, turn by turn, to simulated APIs (Patil et al., ICML 2025).

The published tasks, APIs and checkers of the wheel bfcl-eval 2026.3.23, without its executor, which
evaluates model text. docs/tools.md says how it is installed and what differs.
"""

from collections.abc import Sequence
from typing import Any, Self

from turnbench.envs import bfcl_data
from turnbench.envs.bfcl_backend import Backend
from turnbench.envs.bfcl_data import CATEGORIES, Entry
from turnbench.envs.core import Info, Step
from turnbench.envs.toolcall import Call, Said
from turnbench.envs.toolenv import Score, ToolEnv
from turnbench.envs.toolset import HOW_TO_CALL, ToolSet
from turnbench.envs.wheels import WHEELS, load

MAX_STEPS = 20
"""Replies with calls that one turn may have; one more ends the episode, as in the published harness."""
UNSOLVED = {
    "multi_turn_miss_func_49": "its ground truth calls `tail` in turn 1, which is offered from turn 3 on",
}
"""Tasks that their own ground truth doesn't solve here, and why."""
DONE = "Done."

INSTRUCTIONS = f"""\
You carry out a user's requests with tools. Each request is one turn: call tools, see their results, \
and end the turn with a plain answer, after which you are told the next request. Call nothing that the \
request doesn't need. Where a tool or a value that you need is missing, say so instead of guessing: it \
may be given to you in the next turn.
{HOW_TO_CALL}"""


class BFCL(ToolEnv):
    """Requests to eight simulated APIs. Reward 1 at the end if every turn's checks passed, else 0.

    After each turn whose ground truth has calls, the published checkers compare the state of every API
    and look for all the ground truth's results among those seen so far. Turns in which the right thing
    is to call nothing are not checked, as published; with `strict_withheld` a call there fails the task.
    `info["checks"]` at the end has each turn's verdict.

    Splits: `test`, all 800 tasks; `base`, `miss_func`, `miss_param`, `long_context`, 200 each.
    """

    splits = ("test", *CATEGORIES)
    default_turns = 200
    instructions = INSTRUCTIONS
    checks_arguments = False  # the published executor doesn't either: Python's own errors are answered
    benchmark = f"bfcl-eval {WHEELS['bfcl-eval']}, multi-turn"

    def __init__(
        self,
        *,
        strict_withheld: bool = False,
        tools_in_observation: bool = False,
        max_turns: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(
            tools_in_observation=tools_in_observation, max_turns=max_turns, render_mode=render_mode
        )
        self.strict_withheld = strict_withheld
        self._entry: Entry | None = None
        self._backend: Backend | None = None
        self._steps = 0
        self._called = False
        self._results: list[str] = []
        self._verdicts: list[str] = []

    def tasks(self, split: str) -> Sequence[str]:
        """Ids of a split's tasks, as the benchmark names them."""
        self.check_split(split)
        start = "multi_turn_" if split == "test" else f"multi_turn_{split}_"
        return [task for task in bfcl_data.entries() if task.startswith(start)]

    def data_digest(self) -> str:
        """Digest of the wheel's tasks."""
        return bfcl_data.digest()

    def solution(self) -> list[str]:
        """One action with all calls of a turn, then a plain answer, for each turn."""
        actions: list[str] = []
        for turn in self._task.truth:
            actions += [f"[{', '.join(turn)}]"] if turn else []
            actions.append(DONE)
        return actions

    def fork(self) -> Self:
        """An independent copy; where the folders are too deep to be copied, by replay."""
        assert self._backend is not None
        try:
            backend = self._backend.copy()
        except RecursionError:
            return super().fork()
        twin = self._shallow_copy()
        twin._backend = backend
        twin._results, twin._verdicts = self._results.copy(), self._verdicts.copy()
        return twin

    @property
    def _task(self) -> Entry:
        assert self._entry is not None, "reset() comes first"
        return self._entry

    def _reset(self, task: str) -> str:
        self._entry = known = bfcl_data.entry(task)
        self._backend = Backend.start(known.classes, known.config, known.long_context)
        self._steps, self._called, self._results, self._verdicts = 0, False, [], []
        return known.messages[0]

    def _visible(self) -> ToolSet:
        return bfcl_data.tools(self._task.classes, self._task.hidden(self.turn_index))

    def _make_calls(self, said: Said, info: Info) -> Step:
        step = super()._make_calls(said, info)
        self._called = self._called or any(not call.error for call in said.calls)
        self._steps += 1
        if self._steps > MAX_STEPS:
            self._verdicts.append("too_many_steps")
            self.done = True
        return step

    def _call(self, call: Call) -> str:
        assert self._backend is not None
        result = self._backend.call(call.name, call.arguments)
        self._results.append(result)
        return result

    def _say(self, text: str) -> Step:
        self._verdicts.append(self._verdict())
        self._steps, self._called = 0, False
        if len(self._verdicts) == len(self._task.messages):
            self.done = True
            return Step("The conversation is over.")
        return Step(self._task.messages[len(self._verdicts)])

    def _verdict(self) -> str:
        """How the turn that ends now is judged: "ok", or the published name of what is wrong."""
        turn, known = self.turn_index, self._task
        if not known.truth[turn]:
            return "called_what_is_withheld" if self.strict_withheld and self._called else "ok"
        if not self._called:
            return "empty_turn_model_response"
        assert self._backend is not None
        wanted = bfcl_data.references(known.id)[turn]
        return checked(self._backend.instances, self._results, wanted, turn)

    def _score(self, ended: bool) -> Score:
        won = len(self._verdicts) == len(self._task.messages) and set(self._verdicts) == {"ok"}
        return Score(float(won), won, {"turns": list(self._verdicts)})


def checked(
    instances: dict[str, Any], results: list[str], wanted: bfcl_data.Reference, turn: int
) -> str:
    """The published checkers' word on a turn: "ok" or the name of the first error."""
    official = load("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker")
    try:
        found = official.state_checker(instances, wanted.instances)
        if found["valid"]:
            found = official.response_checker(results, list(wanted.results), turn)
    except Exception as error:  # states that were spoilt may not even be comparable
        return f"not comparable: {type(error).__name__}"
    return "ok" if found["valid"] else found["error_type"].removeprefix("multi_turn:")
