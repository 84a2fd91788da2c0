"""The pages in a real Chromium. Skipped where Playwright or a Chromium isn't installed.

TURNBENCH_AXE may name axe-core's axe.min.js (npm pack axe-core), which then looks at every page.
"""

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from turnbench.agents.core import Population, Resampling
from turnbench.envs.record import Outcome, Task, Tokens, Trajectory, Turn
from turnbench.leaderboards.board import write_entries
from turnbench.leaderboards.log import Key, LogWriter, episode_line
from turnbench.leaderboards.runner import header_of, run
from turnbench.leaderboards.site import build_site
from turnbench.leaderboards.submit import submit
from turnbench.leaderboards.view import server, write_page

playwright = pytest.importorskip("playwright.sync_api", reason="needs the extra 'browser'")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")

FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
ATTACKS = [
    "<script>window.pwned = 1</script>",
    "</script><script>window.pwned = 2</script>",
    "<img src=x onerror='window.pwned = 3'>",
    "<svg onload='window.pwned = 4'>",
    "<iframe srcdoc='<script>parent.pwned = 5</script>'></iframe>",
    "<a href='javascript:window.pwned = 6'>click</a>",
    "<!--<script>",
    "]]><script>window.pwned = 7</script>",
    "{{ 7 * 7 }}${window.pwned = 8}",
    "<style>body { display: none }</style>",
    "<meta http-equiv=refresh content='0;url=https://example.org/'>",
    "\u2028\u0000\x1b[31m\u202e",
]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Opens an address and waits for the page; no error and no foreign request may come of it."""
    pages, troubles = [], []

    def open_(address: str, **options: Any) -> Any:
        page = chromium.new_page(**options)
        pages.append(page)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("dialog", lambda dialog: troubles.append(dialog.message))
        page.on("request", lambda r: r.url.startswith("http") and not r.url.startswith("http://127.0.0.1")
                and troubles.append(r.url))  # fmt: skip
        page.goto(address)
        page.wait_for_selector("body[data-ready]")
        return page

    yield open_
    for page in pages:
        page.close()
    assert not troubles


@pytest.fixture
def played(suite: Any, tmp_path: Path) -> Path:
    rows = {
        "search": {"agent": "amc", "model": "echo", "n": 4, "resample_at": [1, 2]},
        "plain": {"agent": "react", "model": "echo"},
    }
    run(suite(6, agents=rows), tmp_path / "run", workers=1)  # so that their order is known
    return tmp_path / "run"


@pytest.fixture
def hostile(suite: Any, tmp_path: Path) -> Path:
    """A run in which every text is an attack."""
    folder = tmp_path / "hostile"
    with LogWriter(folder, header_of(suite(len(ATTACKS), seeds=[0]))) as log:
        for k, text in enumerate(ATTACKS):
            task = Task("standins:World-v0", f"good{k}", "test", 0)
            tokens = Tokens(0, (1,), (2, 3), (-0.1, -3.0))
            turns = (Turn(text, text, 1.0, text, tokens), Turn(text, f"act {text}", -1.0, text))
            path = Trajectory(
                task, turns, text, Outcome.AGENT_ERROR, text, info={"turn_scores": {text: [1, 2]}}
            )
            parents = Resampling(1, (0, 0), (0.0, -1.0))
            population = Population(
                (path, path), log_weights=(0.0, -1.0), resamplings=(parents,), discarded=(path,)
            )
            log.write(episode_line(Key("one", 0, task.id, 0), population, (text,), 1.0))
    return folder


@pytest.fixture
def served(played: Path) -> Iterator[str]:
    with server(played) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{made.server_port}/"
        made.shutdown()


def test_nothing_that_a_model_wrote_runs(hostile: Path, visit: Any, tmp_path: Path) -> None:
    write_page(hostile, tmp_path / "page.html")
    page = visit((tmp_path / "page.html").as_uri())
    for k, text in enumerate(ATTACKS):
        page.wait_for_function(f"document.querySelector('article h2').textContent.endsWith('good{k}')")
        said = page.locator(".said").first.text_content()
        assert said == "world" + text
        assert page.evaluate("window.pwned") is None
        assert (
            page.locator("main script, main iframe, main img, main a, main meta, main style").count()
            == 0
        )
        page.keyboard.press("j")
    assert page.url.startswith("file:")


def test_the_policy_stops_a_script_that_got_in(played: Path, visit: Any, tmp_path: Path) -> None:
    write_page(played, tmp_path / "page.html")
    page = visit((tmp_path / "page.html").as_uri())
    page.evaluate(
        "const s = document.createElement('script'); s.textContent = 'window.pwned = 1';"
        "document.body.append(s); document.body.insertAdjacentHTML('beforeend', '<p onclick=\"pwned=2\" id=x>x')"
    )
    page.locator("#x").click(force=True)
    assert page.evaluate("window.pwned") is None


def test_episodes_come_on_demand(served: str, visit: Any) -> None:
    page = visit(served)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.headers.get("range", "")))
    page.wait_for_selector("article")
    page.keyboard.press("j")
    page.wait_for_function("new URLSearchParams(location.hash.slice(1)).get('agent') === 'plain'")
    page.wait_for_selector("article[aria-label^='plain']")
    assert len(asked) == 1 and asked[0].startswith("bytes=")


def test_keyboard_deep_links_and_two_side_by_side(served: str, visit: Any) -> None:
    page = visit(served)
    page.wait_for_selector("article")
    page.keyboard.press("]")
    page.keyboard.press("n")
    page.wait_for_selector(".turn.here")
    page.locator("#vs").select_option(label="plain")
    page.wait_for_selector("article:nth-of-type(2)")
    assert page.locator("article").count() == 2 and page.locator(".differs").count() >= 1
    again = visit(page.url)
    again.wait_for_selector("article:nth-of-type(2)")
    assert again.locator("article").all_inner_texts() == page.locator("article").all_inner_texts()
    assert again.locator(".turn.here h3").first.inner_text().startswith("Turn 1")


def test_genealogy_strip_and_filters(served: str, visit: Any) -> None:
    page = visit(served)
    page.wait_for_selector(".tree svg")
    assert page.locator(".tree line").count() == 8 and page.locator(".strip svg").count() == 2
    page.locator("#f-agent").select_option(label="plain")
    assert page.locator("#count").inner_text() == "12 of 24 episodes"
    page.locator("#f-task").fill("good3")
    assert page.locator("#count").inner_text() == "2 of 24 episodes"
    page.locator("#f-sort").select_option("highest return")
    found = [float(x) for x in page.locator(".row i").all_inner_texts()]
    assert found == sorted(found, reverse=True)


def test_a_phone_scrolls_one_way_only(served: str, visit: Any) -> None:
    page = visit(served, viewport={"width": 360, "height": 740})
    page.wait_for_selector("article")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_fault(served: str, visit: Any, scheme: str) -> None:
    page = visit(served, color_scheme=scheme)
    page.wait_for_selector("article")
    no_serious_fault(page)


@pytest.fixture
def site(played: Path, tmp_path: Path) -> Path:
    write_entries(submit(played, tmp_path / "out", {"submitter": {"name": "Ada"}}), tmp_path / "boards")
    build_site(tmp_path / "boards", tmp_path / "site", tmp_path / "out")
    return tmp_path / "site"


def test_a_board_sorts_and_filters(site: Path, visit: Any) -> None:
    page = visit((site / "trial.html").as_uri())

    def systems() -> list[str]:
        return page.locator(".ranking tbody tr:visible td:nth-child(2)").all_inner_texts()

    page.get_by_role("button", name="system").click()
    assert systems() == ["plain", "search"]
    page.get_by_role("button", name="system").press("Enter")
    assert systems() == ["search", "plain"]
    assert page.locator("th[aria-sort=descending]").inner_text() == "system"
    page.locator("#f-oracle").select_option("yes")
    assert systems() == ["search"]  # it weighs by true rewards
    page.locator("#f-oracle").select_option("no")
    assert systems() == ["plain"]
    assert page.locator(".plot circle").count() == 4


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_fault_on_the_site(site: Path, visit: Any, scheme: str) -> None:
    page = visit((site / "trial.html").as_uri(), color_scheme=scheme)
    no_serious_fault(page)
    page.locator(".ranking tbody a").first.click()
    page.wait_for_selector("h2#results")
    no_serious_fault(page)


def no_serious_fault(page: Any) -> None:
    axe = os.environ.get("TURNBENCH_AXE")
    if not axe:
        pytest.skip("TURNBENCH_AXE doesn't name axe-core's axe.min.js")
    page.evaluate(Path(axe).read_text(encoding="utf-8"))
    found = page.evaluate("axe.run().then((result) => result.violations)")
    faults = [
        f"{v['id']}: {v['help']}: {node['html']}"
        for v in found
        if v["impact"] in ("serious", "critical")
        for node in v["nodes"]
    ]
    assert not faults, "\n".join(faults)


def test_every_control_has_a_name(served: str, visit: Any) -> None:
    page = visit(served)
    page.wait_for_selector("article")
    nameless = page.evaluate(
        "[...document.querySelectorAll('button, select, input, [role=img], [role=listbox]')]"
        ".filter((n) => !(n.labels?.length || n.ariaLabel || n.textContent.trim())).map((n) => n.outerHTML)"
    )
    assert nameless == [] and page.evaluate("document.documentElement.lang") == "en"
