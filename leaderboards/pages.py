"""The page of a run: an index of its episodes, which the browser fetches one at a time.

A page is one file. It may hold the episodes too (a small run), or ask for byte ranges of the log
where something serves both. What models and worlds wrote is untrusted: it reaches the page as JSON in
an inert element, is shown as text only, and the content-security policy allows no script but the
page's own, by its hash.
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader
from markupsafe import Markup

from turnbench.agents import checkpoint_folder
from turnbench.envs.errors import LogError
from turnbench.envs.record import Outcome
from turnbench.leaderboards.log import NAME, read_header, read_places
from turnbench.leaderboards.suite import Suite

MAX_EMBEDDED = 64 * 2**20  # bytes of episodes in a page
MAX_VOCABULARY = 20_000
Json = dict[str, Any]


def asset(name: str) -> str:
    """A file of data/."""
    return (files("turnbench.leaderboards") / "data" / name).read_text(encoding="utf-8")


@cache
def templates() -> Environment:
    """The page templates; whatever is put into them is escaped."""
    return Environment(autoescape=True, loader=FunctionLoader(asset), trim_blocks=True)


def policy(script: str, style: str, connect: str = "'none'") -> str:
    """A content-security policy that allows one script and one style sheet, and no other source."""
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        f"connect-src {connect}; img-src 'none'; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def inert(text: str) -> Markup:
    """JSON text fit for a script element of type application/json: nothing in it ends the element."""
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def render(template: str, script: str, connect: str = "'none'", **values: Any) -> str:
    """A template with the style sheet, one script, and a policy for just these."""
    style = asset("page.css")
    values |= {
        "style": Markup(style),
        "script": Markup(script),
        "policy": policy(script, style, connect),
    }
    return templates().get_template(template).render(values)


def run_page(folder: Path, *, embed: bool, log: str = NAME) -> str:
    """The page of a run folder. With `embed` it holds all episodes; else it asks for byte ranges of
    the address `log`. Raises LogError.
    """
    header = read_header(folder)
    try:
        suite, started = Suite.model_validate(header["suite"]), str(header["started"])[:10]
    except (LookupError, ValueError) as error:
        raise LogError(f"{folder / NAME} line 1 is damaged: {' '.join(str(error).split())}") from error
    index, lines = run_index(suite, read_places(folder), keep=embed)
    if embed and sum(map(len, lines)) > MAX_EMBEDDED:
        raise LogError(
            f"{folder} holds more than {MAX_EMBEDDED // 2**20} MiB of episodes, too much for one file: "
            f"use `turnbench view {folder}`"
        )
    episodes = b"\n".join(line.rstrip(b"\n") for line in lines).decode("utf-8") if embed else None
    return render(
        "page.html",
        asset("page.js"),
        "'none'" if embed else "'self'",
        title=index["title"],
        subtitle=f"{len(index['columns']['task']):,} episodes, {started}",
        index=inert(json.dumps({**index, "log": log}, ensure_ascii=False, separators=(",", ":"))),
        episodes=None if episodes is None else inert(episodes),
    )


def run_index(
    suite: Suite, places: Iterable[tuple[int, bytes]], *, keep: bool = False
) -> tuple[Json, list[bytes]]:
    """What a list of the episodes shows, column by column; and the lines, if they are to be kept."""
    agents, outcomes = list(suite.agents), [outcome.value for outcome in Outcome]
    names = ("agent", "env", "task", "seed", "outcome", "ret", "success", "turns", "at", "size")
    columns: dict[str, list[Any]] = {name: [] for name in names}
    tasks: dict[str, int] = {}
    lines: list[bytes] = []
    for start, line in places:
        try:
            row = json.loads(line)
            agent, env, task, seed = row["key"]
            population = row["population"]
            best = population["trajectories"][population["chosen"]]
            values = (
                agents.index(agent),
                env,
                tasks.setdefault(str(task), len(tasks)),
                seed,
                outcomes.index(row["outcome"]),
                round(sum(turn["rew"] for turn in best["turns"]), 6),
                {True: 1, False: 0}.get(best.get("success"), -1),
                len(best["turns"]),
                start,
                len(line),
            )
        except (ValueError, LookupError, TypeError) as error:
            raise LogError(f"the episode at byte {start} is damaged: {error!r}") from error
        for name, value in zip(names, values, strict=True):
            columns[name].append(value)
        if keep:
            lines.append(line)
    return {
        "title": f"{suite.suite} v{suite.version}",
        "agents": agents,
        "models": [spec.model for spec in suite.agents.values()],
        "envs": [spec.id for spec in suite.envs],
        "outcomes": outcomes,
        "tasks": list(tasks),
        "vocab": {name: words for name, spec in suite.models.items() if (words := vocabulary(spec))},
        "columns": columns,
    }, lines


def vocabulary(model: Mapping[str, Any]) -> list[str | None] | None:
    """Each token's text, where the model is a local checkpoint with a small vocabulary."""
    folder = checkpoint_folder(model)
    path = None if folder is None else folder / "tokenizer.json"
    if path is None or not path.is_file():
        return None
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        ids = {**document["model"]["vocab"], **{t["content"]: t["id"] for t in document["added_tokens"]}}
        words: list[str | None] = [None] * (max(ids.values()) + 1)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    if len(words) > MAX_VOCABULARY:
        return None
    for word, number in ids.items():
        words[number] = word.replace("Ġ", " ").replace("Ċ", "\n").replace("▁", " ")
    return words
