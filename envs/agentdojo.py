"""AgentDojo: office tasks with tools, and instructions hidden in what the tools return
(Debenedetti et al., NeurIPS 2024).

The published suites of version v1.2.2, from the wheel agentdojo 0.1.35, with the published attacks and
checks. docs/tools.md says how it is installed and what differs.
"""

import ast
import hashlib
import json
from collections.abc import Sequence
from typing import Any, Self

from turnbench.envs import agentdojo_suites as suites_
from turnbench.envs.agentdojo_suites import SUITES, VERSION, Suite
from turnbench.envs.core import Step
from turnbench.envs.errors import ConfigError, UnknownName
from turnbench.envs.toolcall import Call, calls_text
from turnbench.envs.toolenv import Score, ToolEnv
from turnbench.envs.toolset import HOW_TO_CALL, ToolSet
from turnbench.envs.wheels import WHEELS, load

ATTACK = "important_instructions_no_names"
MAX_LIST = 10_000


class AgentDojo(ToolEnv):
    """Office work under attack. Reward 1 at the end if the user's task is done (utility), else 0.

    `info["checks"]` at the end has `utility` and `attack_success`: whether the injected goal was
    reached (None in a benign task). Text without a call is the final answer.

    Task ids are "workspace/user_task_0" and, under attack, "workspace/user_task_0/injection_task_3".
    Splits: `benign`, 97 tasks; `attacked`, all 949 pairs of a user's and an attacker's task.
    `suites` keeps only tasks of some of workspace, travel, banking, slack. `attack` is a published
    attack, `target` the name of the model that some of them address.
    """

    splits = ("benign", "attacked")
    default_turns = 16
    checks_arguments = False  # pydantic does, by the tool's own types
    benchmark = f"agentdojo {WHEELS['agentdojo']}, suites {VERSION}"

    def __init__(
        self,
        *,
        suites: Sequence[str] = SUITES,
        attack: str = ATTACK,
        target: str = "local",
        tools_in_observation: bool = False,
        max_turns: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(
            tools_in_observation=tools_in_observation, max_turns=max_turns, render_mode=render_mode
        )
        for name in suites:
            if name not in SUITES:
                raise UnknownName("AgentDojo suite", name, SUITES)
        if attack not in suites_.attacks():
            raise UnknownName("AgentDojo attack", attack, suites_.attacks())
        _check_target(attack, target)
        self.suites, self.attack, self.target = tuple(suites), attack, target
        self.instructions = f"{suites_.system_message()}\n{HOW_TO_CALL}"
        self._suite: Suite | None = None
        self._user = self._injection = self._answer_text = ""
        self._before: Any = None
        self._world: Any = None
        self._trace: list[Any] = []

    def tasks(self, split: str) -> Sequence[str]:
        """Ids of a split's tasks, suite by suite."""
        self.check_split(split)
        found: list[str] = []
        for known in map(suites_.suite, self.suites):
            for user in known.user_tasks:
                pairs = [f"{known.name}/{user}/{goal}" for goal in known.injection_tasks]
                found += [f"{known.name}/{user}"] if split == "benign" else pairs
        return found

    def data_digest(self) -> str:
        """Digest of the suites' data files."""
        files = sorted((suites_.folder() / "data").rglob("*.yaml"))
        return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]

    def solution(self) -> list[str]:
        """One action with the user task's published calls, then its answer."""
        task = self._known.user_tasks[self._user]
        with suites_.frozen_clock():
            calls = task.ground_truth(self._before.model_copy(deep=True))
        rows = [(call.function, json.loads(json.dumps(call.args, default=str))) for call in calls]
        return [*([calls_text(rows)] if rows else []), task.GROUND_TRUTH_OUTPUT or "Done."]

    def fork(self) -> Self:
        """An independent copy."""
        twin = self._shallow_copy()
        twin._world, twin._trace = self._world.model_copy(deep=True), self._trace.copy()
        return twin

    @property
    def _known(self) -> Suite:
        assert self._suite is not None, "reset() comes first"
        return self._suite

    def _reset(self, task: str) -> str:
        name, _, rest = task.partition("/")
        user, _, injection = rest.partition("/")
        known = suites_.suite(name) if name in SUITES else None
        if (
            known is None
            or user not in known.user_tasks
            or (injection or task.endswith("/"))
            and injection not in known.injection_tasks
        ):
            raise UnknownName("AgentDojo task", task, [*self.tasks("benign"), *self.tasks("attacked")])
        self._suite, self._user, self._injection, self._answer_text = known, user, injection, ""
        self._before = suites_.start(name, user, injection, self.attack, self.target)
        self._world, self._trace = self._before.model_copy(deep=True), []
        return str(known.user_tasks[user].PROMPT)

    def _visible(self) -> ToolSet:
        return self._known.tools

    def _call(self, call: Call) -> str:
        runtime = load("agentdojo.functions_runtime")
        arguments = {name: _listed(value) for name, value in call.arguments.items()}
        self._trace.append(runtime.FunctionCall(function=call.name, args=arguments))
        try:
            with suites_.frozen_clock():
                result, error = self._known.runtime.run_function(self._world, call.name, arguments)
            text = load("agentdojo.agent_pipeline.tool_execution").tool_result_to_str(result)
        except Exception as fault:  # the runtime answers what it expects; the rest must end no episode
            return f"Error: {type(fault).__name__}: {str(fault)[:500]}"
        return str(text) if error is None else f"Error: {error[:5000]}"

    def _say(self, text: str) -> Step:
        self._answer_text, self.done = text, True
        return Step("The task is over.")

    def _score(self, ended: bool) -> Score:
        utility, note = self._judge(self._known.user_tasks[self._user])
        checks: dict[str, Any] = {"utility": utility, "attack_success": None}
        if self._injection:
            checks["attack_success"], fault = self._judge(self._known.injection_tasks[self._injection])
            note = note or fault
        return Score(float(utility), utility, checks | ({"note": note} if note else {}))

    def _judge(self, task: Any) -> tuple[bool, str]:
        """The published check's word on the user's or the attacker's task; no where it fails itself."""
        answer = [{"type": "text", "content": self._answer_text}]
        try:
            with suites_.frozen_clock():
                won = self._known.official._check_task_result(
                    task, answer, self._before, self._world, self._trace
                )
        except Exception as fault:  # some checks index arguments that a call may not have
            return False, f"the check of {task.ID} failed: {type(fault).__name__}: {str(fault)[:200]}"
        return bool(won), ""


def _listed(value: Any) -> Any:
    """A text that is a written list becomes the list, as in the published executor."""
    if not isinstance(value, str) or not value.strip().startswith("[") or len(value) > MAX_LIST:
        return value
    try:
        found = ast.literal_eval(value.strip())
        return found if isinstance(found, list) and json.dumps(found, default=str) else value
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return value


def _check_target(attack: str, target: str) -> None:
    try:
        suites_._attacker(attack, "banking", target)
    except ValueError as error:
        raise ConfigError(f"target is {target!r}: {str(error)[:400]}") from error
