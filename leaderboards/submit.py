"""submit(run): a run's systems as entries with their trajectories in files, ready for a pull request."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from turnbench.envs.errors import ConfigError, LogError, UnknownName
from turnbench.leaderboards import schema
from turnbench.leaderboards.entry import Entry, entries_of
from turnbench.leaderboards.log import read_header, read_lines
from turnbench.leaderboards.trajectories import header_line, write_trajectories


def submit(
    run: Path, out: Path, about: dict[str, Any], row: str | None = None, url: str | None = None
) -> list[Entry]:
    """Write each system's trajectories to `out` and return the entries that go with them.

    `about` holds the keys that can't be computed: `submitter`, `code_url`, `notes`. `row` chooses one
    system; `url` is the https address of the folder where the files will be. Raises LogError, UnknownName, and ConfigError for what is no submission.
    """
    entries = {entry["system"]["name"]: entry for entry in entries_of(run)}
    if row is not None and row not in entries:
        raise UnknownName("row", row, entries)
    chosen = list(entries.values()) if row is None else [entries[row]]
    for entry in chosen:
        _check(entry, about)
    out.mkdir(parents=True, exist_ok=True)
    made = []
    for entry in chosen:
        path = out / f"{entry['entry']}.jsonl.gz"
        file = write_trajectories(path, system_lines(run, entry["system"]["name"]))
        file |= {} if url is None else {"url": f"{url.rstrip('/')}/{path.name}"}
        whole = {**entry, **about, "trajectories": {**entry["trajectories"], "file": file}}
        try:
            made.append(schema.plain(schema.Entry.model_validate(whole)))
        except ValidationError as error:
            fault = error.errors(include_url=False, include_input=False)[0]
            raise ConfigError(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}") from error
    return made


def system_lines(run: Path, name: str) -> Iterator[bytes]:
    """The lines of a system's trajectory file, from a run's log."""
    yield header_line(read_header(run), name)
    for line, episode in read_lines(run):
        if episode.key.agent == name:
            yield line


def _check(entry: Entry, about: dict[str, Any]) -> None:
    name = entry["system"]["name"]
    if not entry["complete"]:
        raise LogError(f"{name} has episodes that are missing or left: play them first (turnbench run)")
    if entry["track"] == "custom" and not (about.get("code_url") and about.get("notes")):
        raise ConfigError(
            f"{name} is an agent of your own ({entry['system']['agent']}): --code must say where its code "
            "is, and --notes what it does"
        )
