"""Logs that end in failure, each with the agent and the step that decided it.

A step is a turn of the log's trajectory, counted from 0, as in Who&When (Zhang et al., "Which Agent
Causes Task Failures and When?", 2025). ToolWorld's are made here: a ground-truth run in which exactly
one step is done wrongly, kept only if the run then fails. As all other steps are the ground truth's own,
or follow from what the wrong one found, doing that step right would have solved the task.
"""

import json
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from random import Random
from typing import Any, NamedTuple

from turnbench.envs.blame_files import WHO_AND_WHEN, read_who_and_when
from turnbench.envs.blame_log import Log
from turnbench.envs.errors import ConfigError, EnvError, UnknownName
from turnbench.envs.record import Json, Outcome, Task, Trajectory, Turn
from turnbench.envs.toolcall import call_text
from turnbench.envs.toolworld import ToolWorld
from turnbench.envs.toolworld_state import State
from turnbench.envs.toolworld_tools import TOOLS

VERSION = 1  # raise it when other errors are made
TOOLWORLD = "toolworld"
SOURCES = (TOOLWORLD, WHO_AND_WHEN)
ASSISTANT = "Assistant"
"""Who speaks to the user; each tool belongs to one of the others."""
AGENTS = {
    "MailAgent": "find_contact list_mail search_mail read_mail send_mail forward_mail move_mail delete_mail",
    "CalendarAgent": "list_events search_events create_event move_event add_attendee cancel_event",
    "FileAgent": "list_files read_file write_file append_file move_file delete_file",
    "ShopAgent": "search_products get_product find_orders get_order place_order change_address cancel_order"
    " return_order refund_order record_refusal",
    "PaymentAgent": "get_balance list_invoices pay_invoice transfer_money",
}
OWNER = {tool: agent for agent, tools in AGENTS.items() for tool in tools.split()}


def labelled_logs(
    source: str = TOOLWORLD,
    split: str = "test",
    *,
    variant: str = "all",
    data: str | None = None,
    subset: str | None = None,
    limit: int | None = None,
) -> Iterator[Log]:
    """Failed runs with the (agent, step) that decided each, for whatever scores turns.

    `log.trajectory` has one turn for each step, `log.agents` who took it, and `log.agent` and `log.step`
    are the label. `variant` is ToolWorld's. From "who_and_when", `data` is the folder with its files and
    `subset` one of its two (None: both); all its logs belong to the split "test". `limit` bounds how
    many are given. Raises UnknownName and ConfigError.
    """
    if source == TOOLWORLD:
        tasks = ToolWorld(variant).tasks(split)
        return islice(map(toolworld_log, tasks), limit)
    if source != WHO_AND_WHEN:
        raise UnknownName("source of logs", source, SOURCES)
    if split != "test":
        raise UnknownName("split of who_and_when", split, ("test",))
    if data is None:
        raise ConfigError("source who_and_when needs `data`, the folder with its two subsets")
    return islice(read_who_and_when(data, subset), limit)


# --- errors in ToolWorld --------------------------------------------------------------------------------


class Slip(NamedTuple):
    """A way to do step `step` wrongly: what is done instead, what it is, and what follows from it.

    In later steps the text `right` is replaced by `wrong`, where the slip found the one for the other.
    """

    step: int
    action: str
    reason: str
    right: str = ""
    wrong: str = ""


class Run(NamedTuple):
    """A run of ToolWorld: what was seen before each action, the actions, rewards, and how it ended."""

    seen: tuple[str, ...]
    actions: tuple[str, ...]
    rewards: tuple[float, ...]
    success: bool


@lru_cache(maxsize=1024)
def toolworld_log(task: str) -> Log:
    """The log of a ToolWorld task: the same for a task each time. Raises UnknownName."""
    world = ToolWorld()
    world.reset(seed=0, options={"task": task})
    right = _play(world, world.solution())
    if not right.success:
        raise EnvError(f"the ground truth of ToolWorld's task {task} fails")
    rng = Random(f"blame-{VERSION}-{task}")
    for slip in _slips(rng, right, world.problem.state):
        world.reset(seed=0, options={"task": task})
        wrong = _play(world, _with(slip, right.actions))
        if not wrong.success and _goes_unnoticed(slip, wrong):
            return _log(task, slip, wrong)
    raise EnvError(f"no step of ToolWorld's task {task} is decisive")


def _play(world: ToolWorld, actions: Sequence[str]) -> Run:
    seen, done, rewards = [world.observation], [], []
    info: Json = {}
    for action in actions:
        if world.over:
            break
        observation, reward, _, _, info = world.step(action)
        seen.append(observation)
        done.append(action)
        rewards.append(reward)
    return Run(tuple(seen), tuple(done), tuple(rewards), bool(info.get("success")))


def _with(slip: Slip, actions: Sequence[str]) -> list[str]:
    later = actions[slip.step + 1 :]
    if slip.right:
        later = [action.replace(slip.right, slip.wrong) for action in later]
    return [*actions[: slip.step], slip.action, *later]


def _goes_unnoticed(slip: Slip, run: Run) -> bool:
    """Whether the run is whole and the world did not say at once that the step was wrong."""
    return len(run.seen) > slip.step + 1 and not run.seen[slip.step + 1].startswith("Error")


def _log(task: str, slip: Slip, run: Run) -> Log:
    turns = [Turn(*turn) for turn in zip(run.seen, run.actions, run.rewards, strict=False)]
    name = Task("turnbench/ToolWorld-v0", task, _split(task))
    path = Trajectory(name, tuple(turns), run.seen[-1], Outcome.OK, success=False)
    agents = tuple(map(_speaker, run.actions))
    return Log(task, run.seen[0], "", path, agents, agents[slip.step], slip.step, slip.reason, True)


def _split(task: str) -> str:
    number = int(task.rpartition("-")[2])
    return "train" if number < 10_000 else "dev" if number < 20_000 else "test"


def _speaker(action: str) -> str:
    call = _called(action)
    return ASSISTANT if call is None else OWNER[call[0]]


def _called(action: str) -> tuple[str, Json] | None:
    """Tool and arguments of a ground-truth action; None for plain text."""
    if not action.startswith('{"name"'):
        return None
    row = json.loads(action)
    return row["name"], row["arguments"]


# --- slips ----------------------------------------------------------------------------------------------


def _slips(rng: Random, right: Run, state: State) -> list[Slip]:
    """All ways to go wrong that are considered, in random order; steps that change nothing come too."""
    found: list[Slip] = []
    for step, action in enumerate(right.actions):
        call = _called(action)
        if call is None:
            found += _misreports(rng, step, action)
        elif TOOLS[call[0]].writes:
            found += _wrong_arguments(rng, step, call, right, state)
            found += _omissions(step, call, right)
        else:
            found += _wrong_people(rng, step, call, state)
    rng.shuffle(found)
    return found


def _misreports(rng: Random, step: int, said: str) -> list[Slip]:
    """A fact told to the user with another digit."""
    told = _another_digit(rng, said)
    return [Slip(step, told, f"told the user {told!r} instead of {said!r}")] if told != said else []


def _omissions(step: int, call: tuple[str, Json], right: Run) -> list[Slip]:
    """The last look repeated instead of the change that was due."""
    looks = [a for a in right.actions[:step] if (c := _called(a)) and not TOOLS[c[0]].writes]
    return [Slip(step, looks[-1], f"looked again instead of calling {call[0]}")] if looks else []


def _wrong_arguments(
    rng: Random, step: int, call: tuple[str, Json], right: Run, state: State
) -> list[Slip]:
    name, arguments = call
    properties = TOOLS[name].schema["function"]["parameters"]["properties"]
    known = [key for table in state.values() for key in table]
    known += [record["email"] for record in state["contacts"].values()]
    found = []
    for argument, value in arguments.items():
        other = _another(rng, properties[argument], value, known)
        if other is not None and other != value:
            action = call_text(name, **{**arguments, argument: other})
            reason = f"called {name} with {argument} {other!r} instead of {value!r}"
            found.append(Slip(step, action, reason))
    return found


def _wrong_people(rng: Random, step: int, call: tuple[str, Json], state: State) -> list[Slip]:
    """Somebody else looked up, and taken for the right one from then on."""
    name, arguments = call
    contacts = state["contacts"]
    others = [other for other in contacts if other != arguments.get("name")]
    if name != "find_contact" or arguments["name"] not in contacts or not others:
        return []
    other = rng.choice(others)
    reason = f"looked up {other!r} instead of {arguments['name']!r}"
    emails = contacts[arguments["name"]]["email"], contacts[other]["email"]
    return [Slip(step, call_text(name, name=other), reason, *emails)]


_SHAPES = (r"[A-Z]-\d+", r"[\w.]+@[\w.]+", r"(?:docs|notes|reports)/\S+", r"checking|savings|tax")


def _another(rng: Random, schema: Json, value: Any, known: Sequence[str]) -> Any:
    """Another value that could have been meant; None where there is none."""
    if isinstance(value, int):
        return value + rng.choice((1, 2, 5, 10))
    if isinstance(value, list):
        return value[:-1] or None
    if "enum" in schema:
        return rng.choice([other for other in schema["enum"] if other != value])
    for shape in _SHAPES:
        if re.fullmatch(shape, value):
            alike = [k for k in known if k != value and re.fullmatch(shape, k) and k[0:2] != value[0:1]]
            same = [k for k in alike if "-" not in value[:2] or k[:2] == value[:2]]
            return rng.choice(same) if same else None
    changed = _another_digit(rng, value)
    return changed if changed != value else None


def _another_digit(rng: Random, text: str) -> str:
    """`text` with one of its digits changed, if it has any."""
    places = [k for k, character in enumerate(text) if character in "0123456789"]
    if not places:
        return text
    k = rng.choice(places)
    digit = rng.choice([d for d in "123456789" if d != text[k]])
    return text[:k] + digit + text[k + 1 :]
