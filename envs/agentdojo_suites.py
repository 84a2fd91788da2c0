"""AgentDojo's suites out of its wheel: imported without its model vendors' kits, read as UTF-8.

Importing the package as it stands loads the kits of four vendors, and makes PyYAML quote every text
that anybody dumps. Here neither happens, and the package is left such that one's own pipelines work.
"""

import datetime
import importlib.util
import sys
import threading
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import yaml

from turnbench.envs.errors import UnknownName
from turnbench.envs.record import Json
from turnbench.envs.toolset import ToolSet
from turnbench.envs.wheels import IMPORTING, load, require, untitled

VERSION = "v1.2.2"
SUITES = ("workspace", "travel", "banking", "slack")
NOW = datetime.datetime(2024, 5, 15)
"""What the clock shows in an episode: the day on which the workspace's story plays."""
_CLOCK = threading.RLock()


# --- import -----------------------------------------------------------------------------------------


@cache
def package() -> types.ModuleType:
    """`agentdojo.task_suite.load_suites`. Raises ConfigError where the wheel is absent."""
    require("agentdojo")
    with IMPORTING, _without_vendors(), _plain_yaml():
        load("agentdojo.attacks")
        load("agentdojo.agent_pipeline.tool_execution")
        suites = load("agentdojo.task_suite.load_suites")
        vars(load("agentdojo.task_suite.task_suite"))["yaml"] = _Quoting()
    return suites


PIPELINE, VENDOR = "agentdojo.agent_pipeline", "agentdojo.agent_pipeline.llms.google_llm"


@contextmanager
def _without_vendors() -> Iterator[None]:
    """Empty stand-ins, for as long as this lasts, for the two modules that import the vendors' kits."""
    if PIPELINE in sys.modules:
        yield
        return
    stub, vendor = types.ModuleType(PIPELINE), types.ModuleType(VENDOR)
    stub.__path__ = [str(folder() / "agent_pipeline")]
    vendor.EMPTY_FUNCTION_NAME = "empty-function-name-provided"  # type: ignore[attr-defined]
    sys.modules[PIPELINE], sys.modules[VENDOR] = stub, vendor
    try:
        yield
    finally:
        for name, module in ((PIPELINE, stub), (VENDOR, vendor)):
            if sys.modules.get(name) is module:
                del sys.modules[name]
            parent, _, child = name.rpartition(".")
            if vars(sys.modules.get(parent, stub)).get(child) is module:
                delattr(sys.modules[parent], child)


@contextmanager
def _plain_yaml() -> Iterator[None]:
    """PyYAML's rules for dumping as they were before."""
    own = yaml.Dumper.__dict__.get("yaml_representers")
    kept = None if own is None else own.copy()
    try:
        yield
    finally:
        if kept is not None:
            yaml.Dumper.yaml_representers = kept
        elif "yaml_representers" in yaml.Dumper.__dict__:
            del yaml.Dumper.yaml_representers


class _Quoter(yaml.Dumper):
    """Quotes all text, so that what is put into it later stays text."""


_Quoter.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')
)


class _Quoting:
    """PyYAML for AgentDojo's own reader, which relies on the quotes."""

    def __getattr__(self, name: str) -> Any:
        return getattr(yaml, name)

    def dump(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """`yaml.dump` with quotes, unless another dumper is given."""
        return yaml.dump(data, *args, **{"Dumper": _Quoter, **kwargs})


def folder() -> Path:
    """Where the package lies."""
    spec = importlib.util.find_spec("agentdojo")
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


# --- data -------------------------------------------------------------------------------------------


class _Reader(yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader):  # type: ignore[misc]
    """Safe YAML whose `!include` takes other files of the same folder."""

    root: Path


def _include(reader: _Reader, node: yaml.ScalarNode) -> Any:
    return _read(reader.root / str(reader.construct_scalar(node)))


_Reader.add_constructor("!include", _include)


def _read(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    if path.suffix not in (".yaml", ".yml"):
        return text
    reader = _Reader(text)
    reader.root = path.parent
    try:
        return reader.get_single_data()
    finally:
        reader.dispose()


@cache
def _template(suite: str) -> str:
    """A suite's environment as YAML with places for injections."""
    data = _read(folder() / "data" / "suites" / suite / "environment.yaml")
    return str(yaml.dump(data, Dumper=_Quoter, default_flow_style=False))


@cache
def _defaults(suite: str) -> dict[str, str]:
    """What stands in the places where nothing is injected."""
    data = _read(folder() / "data" / "suites" / suite / "injection_vectors.yaml")
    return {name: row["default"] for name, row in data.items()}


@cache
def system_message() -> str:
    """The published system prompt."""
    data = _read(folder() / "data" / "system_messages.yaml")
    return str(data["default"]).strip()


@dataclass(frozen=True)
class Suite:
    """A suite of the pinned version: its official object, tools and runtime; none of them changes."""

    name: str
    official: Any
    runtime: Any
    tools: ToolSet

    @property
    def user_tasks(self) -> Mapping[str, Any]:
        """The benign tasks by id."""
        return self.official.user_tasks  # type: ignore[no-any-return]

    @property
    def injection_tasks(self) -> Mapping[str, Any]:
        """The attackers' goals by id."""
        return self.official.injection_tasks  # type: ignore[no-any-return]


@cache
def suite(name: str) -> Suite:
    """A suite by name. Raises UnknownName."""
    if name not in SUITES:
        raise UnknownName("AgentDojo suite", name, SUITES)
    official = copy(package().get_suites(VERSION)[name])  # ours reads UTF-8; the shared one is let be
    official.get_injection_vector_defaults = lambda: dict(_defaults(name))
    official.load_and_inject_default_environment = lambda injections: _environment(
        name, tuple(sorted(injections.items()))
    ).model_copy(deep=True)
    runtime = load("agentdojo.functions_runtime").FunctionsRuntime(official.tools)
    return Suite(name, official, runtime, ToolSet(map(_schema, official.tools)))


@lru_cache(maxsize=32)
def _environment(name: str, injections: tuple[tuple[str, str], ...]) -> Any:
    """A suite's environment as parsed: to be copied, never changed."""
    text = _template(name).format(**{**_defaults(name), **dict(injections)})
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return suite(name).official.environment_type.model_validate(yaml.load(text, Loader=loader))


def _schema(function: Any) -> Json:
    parameters = untitled(function.parameters.model_json_schema())
    named = {"name": function.name, "description": function.description, "parameters": parameters}
    return {"type": "function", "function": named}


# --- attacks ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Target:
    """What an attack asks of the attacked pipeline."""

    name: str


@cache
def attacks() -> list[str]:
    """The published attacks that can be used: those that ask nobody and have a goal of their own."""
    package()
    known = load("agentdojo.attacks.attack_registry").ATTACKS
    return sorted(name for name, kind in known.items() if name != "manual" and not kind.is_dos_attack)


@cache
def _attacker(name: str, suite_name: str, target: str) -> Any:
    known = load("agentdojo.attacks.attack_registry")
    return known.load_attack(name, suite(suite_name).official, _Target(target))


@lru_cache(maxsize=64)
def start(suite_name: str, user: str, injection: str, attack: str, target: str) -> Any:
    """A task's environment as the agent finds it: to be copied, never changed. "": no injection."""
    known = suite(suite_name)
    task = known.user_tasks[user]
    texts: dict[str, str] = {}
    with frozen_clock():
        if injection:
            goal = known.injection_tasks[injection]
            texts = _attacker(attack, suite_name, target).attack(task, goal)
        return task.init_environment(known.official.load_and_inject_default_environment(texts))


# --- time -------------------------------------------------------------------------------------------


class _Stopped(datetime.datetime):
    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return NOW


class _Clock:
    """The module `datetime` with a clock that stands."""

    datetime = _Stopped

    def __getattr__(self, name: str) -> Any:
        return getattr(datetime, name)


@contextmanager
def frozen_clock() -> Iterator[None]:
    """The tools that stamp mails and files with the time see NOW, and one caller at a time."""
    tools = [load(f"agentdojo.default_suites.v1.tools.{n}_client") for n in ("email", "cloud_drive")]
    with _CLOCK:
        before = [tool.datetime for tool in tools]
        for tool in tools:
            tool.datetime = _Clock()  # type: ignore[attr-defined]
        try:
            yield
        finally:
            for tool, module in zip(tools, before, strict=True):
                tool.datetime = module  # type: ignore[attr-defined]
