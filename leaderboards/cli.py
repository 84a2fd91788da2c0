"""The command `turnbench`. Everything heavy is imported by the command that needs it."""

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnbench.leaderboards import publishing, scoring

if TYPE_CHECKING:
    from rich.console import Console

    from turnbench.envs.core import TextEnv
    from turnbench.leaderboards.suite import Suite

app = typer.Typer(
    help="Measure and improve language-model agents in multi-turn text environments.\n\n"
    "Example: turnbench run quickstart\n\n"
    "Exit codes: 0 done; 1 a check failed; 2 wrong input; 3 episodes are missing; 130 interrupted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

INCOMPLETE = 3


def console(*, stderr: bool = False) -> "Console":
    """Where people read; 110 columns wide where nobody says otherwise."""
    from rich.console import Console

    made = Console(stderr=stderr, highlight=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = 110
    return made


def _tell_version(wanted: bool) -> None:
    from importlib.metadata import version

    if wanted:
        print(f"turnbench {version('turnbench')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="print the version", callback=_tell_version, is_eager=True)
    ] = False,
) -> None:
    """What goes before a command."""


@app.command("list")
def list_(
    what: Annotated[
        str, typer.Argument(help="envs, agents, scorers, algorithms, suites; all of them if left out")
    ] = "all",
) -> None:
    """List what there is.

    Example: turnbench list envs
    """
    from turnbench import agents, algorithms, envs
    from turnbench.agents.scorers import SCORERS
    from turnbench.envs.errors import UnknownName
    from turnbench.leaderboards.suite import shipped_suites

    groups: dict[str, Callable[[], list[str]]] = {
        "envs": envs.list_envs,
        "agents": lambda: sorted(agents.AGENTS),
        "scorers": lambda: sorted(SCORERS),
        "algorithms": lambda: sorted(algorithms.ALGORITHMS),
        "suites": lambda: list(shipped_suites()),
    }
    if what != "all" and what not in groups:
        raise UnknownName("group", what, [*groups, "all"])
    for group in groups if what == "all" else [what]:
        if what == "all":
            print(f"{group}:")
        for name in groups[group]():
            print(f"  {name}" if what == "all" else name)


@app.command()
def check(
    env: Annotated[str, typer.Argument(help="an environment's id, or module:Name-v0")],
    json: Annotated[bool, typer.Option("--json", help="print the report as JSON")] = False,
) -> None:
    """Test an environment against the whole contract.

    Example: turnbench check turnbench/TextCraft-v0
    """
    from turnbench.envs.check import check_env

    report = check_env(env)
    print(report.to_json() if json else report)
    if not report.ok:
        raise typer.Exit(1)


@app.command()
def play(
    env: Annotated[str, typer.Argument(help="an environment's id, or module:Name-v0")],
    task: Annotated[str | None, typer.Option(help="task id; a random one if left out")] = None,
    seed: Annotated[int, typer.Option(min=0, help="seed of the episode")] = 0,
) -> None:
    """Play an environment yourself. Type an action a line; an empty line or Ctrl-D leaves.

    Example: turnbench play turnbench/TextCraft-v0 --task 140
    """
    from turnbench import envs
    from turnbench.envs.errors import EnvError, TurnbenchError

    world = envs.make(env)
    options = {} if task is None else {"task": task}
    try:
        _play(world, seed, options)
    except TurnbenchError:
        raise
    except Exception as error:
        raise EnvError(f"{env} failed: {type(error).__name__}: {error}") from error
    finally:
        world.close()


def _play(world: "TextEnv", seed: int, options: dict[str, str]) -> None:
    observation, info = world.reset(seed=seed, options=options)
    if world.instructions:
        print(world.instructions, end="\n\n")
    _show_tools(info)
    print(f"[task {info['task']}, seed {seed}, at most {world.max_turns} turns]\n{observation}")
    total, over = 0.0, False
    while not over:
        try:
            action = input("> ")
        except EOFError:
            action = ""
        if not action:
            break
        observation, reward, terminated, truncated, info = world.step(action)
        total, over = total + reward, terminated or truncated
        _show_tools(info)
        print(observation)
    turns = len(world.history)
    print(f"[return {total:g} after {turns} turn{'' if turns == 1 else 's'}]")


def _show_tools(info: dict[str, Any]) -> None:
    """A world's tools, at the start and when they change, as they are called: name(argument=...)."""
    from turnbench.envs.toolset import HOW_TO_CALL, ToolSet, is_schema

    tools = info.get("tools")
    if tools and isinstance(tools, list | tuple) and all(map(is_schema, tools)):
        print(f"Tools:\n{ToolSet(tools).compact}\n{HOW_TO_CALL}\n")


@app.command()
def run(
    suite: Annotated[
        str, typer.Argument(help="a shipped suite's name (turnbench list suites), or a YAML file")
    ],
    out: Annotated[Path | None, typer.Option(help="run folder; runs/SUITE if left out")] = None,
    workers: Annotated[int, typer.Option(min=1, help="episodes played at once")] = 16,
    agent: Annotated[
        list[str] | None, typer.Option(help="only this row of the suite; may be repeated")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="ask this model instead: hf:FOLDER or api:NAME")
    ] = None,
    tasks: Annotated[
        int | None, typer.Option(min=1, help="a trial of only so many tasks of each environment")
    ] = None,
    boards: Annotated[Path, typer.Option(help="folder for the board entries")] = Path(
        "leaderboards/boards"
    ),
) -> None:
    """Play a suite, print its table and write its board. Run again to go on after an interruption.

    Example: turnbench run quickstart --out runs/mine --workers 8
    """
    from turnbench.envs.errors import ConfigError
    from turnbench.leaderboards.progress import Show
    from turnbench.leaderboards.runner import run as play_all
    from turnbench.leaderboards.suite import find_suite, load_suite

    chosen = load_suite(suite, agents=agent, model=model, tasks=tasks)
    folder = out or Path("runs") / chosen.suite
    say = console(stderr=True)
    tell = partial(say.print, markup=False, soft_wrap=True)
    tell(_headline(chosen, folder))
    try:
        report = play_all(chosen, folder, workers=workers, watcher=Show(say))
    except ConfigError as error:
        if not error.at:
            raise
        raise find_suite(suite).error(error.at, str(error)) from error
    idle: list[str] = []
    if report.done:
        idle = _show(folder, boards if report.complete and tasks is None else None)
    if report.interrupted and report.done < report.total:
        tell(f"{report.done} of {report.total} episodes are done; the same command goes on.")
        raise typer.Exit(130)
    if not report.complete:
        tell(
            f"{report.missing} of {report.total} episodes are missing (their environment or server "
            "failed), so no board is written. The same command plays them again."
        )
        raise typer.Exit(INCOMPLETE)
    if idle:
        tell(
            f"No turn was ever played by {', '.join(idle)} in some world, so nothing was measured and no "
            f"entry is written; {folder}/log.jsonl says why. After mending it start in a new folder."
        )
        raise typer.Exit(INCOMPLETE)
    if tasks is not None:
        tell(f"A trial is entered into no board, unless by `turnbench board {folder} --write`.")


@app.command()
def board(
    folder: Annotated[Path, typer.Argument(help="a run folder")],
    write: Annotated[
        bool, typer.Option("--write", help="write the entries into the boards folder")
    ] = False,
    boards: Annotated[Path, typer.Option(help="the boards folder")] = Path("leaderboards/boards"),
) -> None:
    """Show a run's table, and with --write enter it into the boards.

    Example: turnbench board runs/quickstart --write
    """
    _show(folder, boards if write else None)


@app.command()
def train(
    config: Annotated[
        Path,
        typer.Argument(
            help="a YAML file with the key `algorithm` (turnbench list algorithms) and that algorithm's own"
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="checkpoint folder; runs/FILE if left out")] = None,
) -> None:
    """Train a model. Run again to go on after an interruption.

    Example: turnbench train algorithms/configs/tiny.yaml --out runs/tiny
    """
    from turnbench.algorithms import trainer
    from turnbench.envs.errors import ConfigError, ConfigFaults, UnknownName
    from turnbench.leaderboards.yamlfile import read_yaml

    document = read_yaml(config)
    options = dict(document.data)
    name = options.pop("algorithm", None)
    if not isinstance(name, str):
        raise document.error((), "the key 'algorithm' is missing")
    try:
        train = trainer(name)
    except UnknownName as error:
        raise document.error(("algorithm",), str(error)) from error
    try:
        train(options, out or Path("runs") / config.stem)
    except UnknownName as error:
        raise ConfigError(f"{config}: {error}") from error
    except ConfigFaults as error:
        lines = (str(document.error(fault.at, str(fault))) for fault in error.faults)
        raise ConfigError("\n".join(lines)) from error
    except ConfigError as error:
        raise ConfigError(f"{config}: {error}") from error


@app.command()
def credit(
    run: Annotated[Path, typer.Argument(help="run folder of a trainer with a critic (ppo, mpo, ...)")],
    episodes: Annotated[int, typer.Option(min=1, help="episodes to play and judge")] = 32,
    log: Annotated[
        Path | None, typer.Option(help="judge the episodes of this suite's run folder instead")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="write a heat map of credit to this file")] = None,
    shown: Annotated[int, typer.Option(min=1, help="trajectories in the heat map")] = 8,
    out: Annotated[
        Path | None,
        typer.Option(help="write a copy of --log there that shows credit by turn (turnbench view)"),
    ] = None,
) -> None:
    """Show what a trained critic tells apart. That is turns, or tokens inside them.

    Example: turnbench credit runs/mpo --html credit.html
    """
    from turnbench.algorithms.batch import Episode
    from turnbench.algorithms.credit import Critic, page, strips, summary
    from turnbench.envs.errors import ConfigError
    from turnbench.leaderboards.cases import read_cases
    from turnbench.leaderboards.shown import by_strip, write_shown

    if out is not None and (log is None or not (log / "log.jsonl").is_file()):
        raise ConfigError("--out wants the run folder of a suite as --log, of which it makes a copy")
    critic = Critic(run)
    cases = [] if log is None else read_cases(log).cases
    judged = critic.judge([Episode(c.path) for c in cases] if cases else critic.play(episodes))
    told = summary(judged)
    print(f"{told['trajectories']:.0f} trajectories")
    print(f"between-turn share of the critic's variance: median {told['median']:.3f}")
    print(f"trajectories in which it is above one half: {told['above_half']:.1%}")
    if html is not None:
        html.write_text(page(judged[:shown]), encoding="utf-8")
        print(f"wrote {html}")
    if out is not None and log is not None:
        write_shown(log, out, by_strip({c.id: strips(j) for c, j in zip(cases, judged, strict=True)}))
        print(f"wrote {out / 'log.jsonl'}; turnbench view {out}")


publishing.register(app)
scoring.register(app)


def _headline(suite: "Suite", folder: Path) -> str:
    worlds = ", ".join(spec.id for spec in suite.envs)
    rows = ", ".join(suite.agents)
    return f"Suite {suite.suite} v{suite.version} ({suite.digest}): {rows} on {worlds} -> {folder}"


def _show(folder: Path, boards: Path | None) -> list[str]:
    """Print a run's table and write its complete entries; returns the rows that aren't complete."""
    from turnbench.envs.errors import BoardError
    from turnbench.leaderboards.board import write_entries
    from turnbench.leaderboards.entry import entries_of
    from turnbench.leaderboards.table import table

    entries = entries_of(folder)
    screen = console()
    screen.print(table(entries, screen.width))
    if boards is not None:
        try:
            for path in write_entries((e for e in entries if e["complete"]), boards):
                print(f"wrote {path}")
        except BoardError as error:
            again = f"turnbench board {folder} --write --boards {boards}"
            raise BoardError(f"{error}\nThe run is safe; when that is mended: {again}") from error
    return [entry["system"]["name"] for entry in entries if not entry["complete"]]


def main() -> Any:
    """Run the command line; errors that turnbench raises on purpose are one clear message."""
    sys.path.append(os.getcwd())  # last, so that it shadows nothing: for environments as module:Name
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="replace")
    try:
        return app()
    except Exception as error:
        from turnbench.envs.errors import TurnbenchError  # late: --help shall not wait for it

        if not isinstance(error, TurnbenchError | OSError):
            raise
        print(f"turnbench: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
