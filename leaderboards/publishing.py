"""The commands with which results are compared, published, checked and shown (cli.py has the rest)."""

from pathlib import Path
from typing import Annotated

import typer


def compare(
    runs: Annotated[list[Path], typer.Argument(help="run folders or trajectory files")],
) -> None:
    """Say which systems are better, and if noise could explain it.

    Example: turnbench compare runs/mine runs/theirs
    """
    from turnbench.leaderboards.cli import console
    from turnbench.leaderboards.compare import compare as compare_all
    from turnbench.leaderboards.compare import comparison_table

    console().print(comparison_table(compare_all(runs)))


def submit(
    folder: Annotated[Path, typer.Argument(help="a run folder")],
    name: Annotated[str, typer.Option(help="who answers for the entry, as shown on the board")],
    org: Annotated[str, typer.Option(help="your organisation")] = "",
    contact: Annotated[str, typer.Option(help="an address or a handle")] = "",
    agent: Annotated[str | None, typer.Option(help="only this row of the suite")] = None,
    code: Annotated[str | None, typer.Option(help="https address of an agent's code")] = None,
    notes: Annotated[str, typer.Option(help="what a reader should know")] = "",
    url: Annotated[
        str | None, typer.Option(help="https address of the folder where the files will be")
    ] = None,
    boards: Annotated[Path, typer.Option(help="folder for the board entries")] = Path(
        "leaderboards/boards"
    ),
) -> None:
    """Prepare a run's results for a pull request. Writes entries and trajectory files
    (docs/publishing.md).

    Example: turnbench submit runs/mine --name "Ada Lovelace" --contact ada@example.org
    """
    from turnbench.leaderboards.board import write_entries
    from turnbench.leaderboards.submit import submit as prepare

    submitter = {"name": name, "org": org, "contact": contact}
    about = {"submitter": submitter, "code_url": code, "notes": notes}
    for entry in (entries := prepare(folder, folder / "submission", about, agent, url)):
        print(f"wrote {folder / 'submission' / entry['trajectories']['file']['name']}")
    for path in write_entries(entries, boards):
        print(f"wrote {path}")
    print(
        "Upload the .jsonl.gz files where people can fetch them, say so with --url, and open a pull "
        "request with the YAML files."
    )


def verify(
    entry: Annotated[Path, typer.Argument(help="an entry's YAML file")],
    log: Annotated[
        Path | None, typer.Option(help="its trajectory file; beside the entry if left out")
    ] = None,
    suite: Annotated[
        Path | None, typer.Option(help="the suite's YAML file, where it isn't a shipped one")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=0, help="processes that replay; one a core if left out")
    ] = None,
    seconds: Annotated[float, typer.Option(help="how long the replay may take")] = 3600,
    save: Annotated[
        bool, typer.Option("--record", help="write down beside the entry that it is verified")
    ] = False,
) -> None:
    """Check an entry by playing every recorded action again.

    Exit codes: 0 accepted; 10 schema; 11 suite; 12 protocol; 13 digests; 14 episodes; 15 numbers;
    16 replay; 17 search; 18 leaks; 19 ranks; 20 neither: a world declares itself non-deterministic.

    Example: turnbench verify leaderboards/boards/quickstart/ENTRY.yaml --log ENTRY.jsonl.gz
    """
    from turnbench.leaderboards.log import existing
    from turnbench.leaderboards.verify import UNVERIFIABLE, Case, record
    from turnbench.leaderboards.verify import verify as checks_of

    for path in filter(None, (entry, log, suite)):
        existing(path)
    case = Case(entry, log, suite, seconds=seconds)
    if workers is not None:
        case.workers = workers
    findings = []
    for finding in checks_of(case):
        findings.append(finding)
        word = {0: "ok", UNVERIFIABLE: "open"}.get(finding.code, "FAIL")
        print(f"{finding.check:9} {word:4} {finding.text}", flush=True)
    code = findings[-1].code or max(finding.code for finding in findings)
    if code == UNVERIFIABLE:
        print("neither verified nor rejected: without replay the entry stays self-reported")
        raise typer.Exit(code)
    if code:
        print(f"rejected by the check '{findings[-1].check}'")
        raise typer.Exit(code)
    if save:
        print(f"wrote {record(case, findings)}")
    print("accepted")


def url(entry: Annotated[Path, typer.Argument(help="an entry's YAML file")]) -> None:
    """Print where an entry's trajectory file is, for the workflow that verifies it."""
    from turnbench.envs.errors import BoardError
    from turnbench.leaderboards.board import read_entry

    file = read_entry(entry)["trajectories"].get("file", {})
    if "url" not in file:
        raise BoardError(f"{entry} doesn't say where its trajectory file is (turnbench submit --url)")
    print(file["url"])


def view(
    folder: Annotated[Path, typer.Argument(help="a run folder or a trajectory file")],
    html: Annotated[
        Path | None, typer.Option(help="write one self-contained file instead of serving")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="port; a free one if left out")] = 0,
    browser: Annotated[bool, typer.Option(help="open a browser")] = True,
) -> None:
    """Look at a run in the browser. It is served to this machine only, or written as one file.

    Example: turnbench view runs/mine
    """
    from turnbench.leaderboards.view import run_folder, server, write_page

    with run_folder(folder) as unpacked:
        if html is not None:
            write_page(unpacked, html)
            print(f"wrote {html}")
            return
        with server(unpacked, port) as made:
            address = f"http://127.0.0.1:{made.server_port}/"
            print(f"{address} - Ctrl-C ends it", flush=True)
            if browser:
                import webbrowser

                webbrowser.open(address)
            try:
                made.serve_forever()
            except KeyboardInterrupt:
                print()


def site(
    out: Annotated[Path, typer.Option(help="folder for the pages")] = Path("site"),
    boards: Annotated[Path, typer.Option(help="the boards folder")] = Path("leaderboards/boards"),
    logs: Annotated[
        Path | None, typer.Option(help="folder with trajectory files, for pages of runs")
    ] = None,
) -> None:
    """Make a static site of the boards.

    Example: turnbench site --out site --logs trajectories
    """
    from turnbench.leaderboards.site import build_site

    pages = build_site(boards, out, logs)
    print(f"wrote {len(pages)} pages; open {pages[-1]}")


def schema() -> None:
    """Print the JSON Schema of entries, leaderboard-entry/1.

    Example: turnbench schema > leaderboards/data/leaderboard-entry-1.json
    """
    from turnbench.leaderboards.schema import json_schema

    print(json_schema(), end="")


def register(app: typer.Typer) -> None:
    """Add the commands to the command line; `url` serves a workflow and isn't listed."""
    for command in (compare, submit, verify, view, site, schema):
        app.command()(command)
    app.command(hidden=True)(url)
