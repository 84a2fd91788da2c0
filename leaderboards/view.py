"""view: a run's page on this machine only, with its log beside it, read in byte ranges."""

import gzip
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from turnbench.envs.errors import LogError
from turnbench.leaderboards.log import NAME, existing
from turnbench.leaderboards.pages import run_page

MAX_UNPACKED = 8 * 2**30
_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{1,18})")


@contextmanager
def run_folder(path: Path) -> Iterator[Path]:
    """A run folder: `path` itself, or a trajectory file unpacked for as long as it is needed.

    Raises LogError.
    """
    if existing(path).is_dir():
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="turnbench-view-") as folder:
        with gzip.open(path, "rb") as packed, (Path(folder) / NAME).open("wb") as log:
            try:
                while block := packed.read(2**20):
                    log.write(block)
                    if log.tell() > MAX_UNPACKED:
                        raise LogError(f"{path} unpacks to more than {MAX_UNPACKED // 2**30} GiB")
            except (OSError, EOFError, zlib.error) as error:
                raise LogError(f"{path} is no whole gzip file: {error}") from error
        yield Path(folder)


def server(folder: Path, port: int = 0) -> ThreadingHTTPServer:
    """A server of a run's page and log, bound to the loopback interface; port 0 takes a free one.

    It answers only to its own name, so that no web page can reach it by a name of its choosing.
    """
    page = run_page(folder, embed=False).encode()
    log = folder / NAME

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            host = self.headers.get("Host", "")
            if host not in (f"127.0.0.1:{made.server_port}", f"localhost:{made.server_port}"):
                self.send_error(HTTPStatus.FORBIDDEN)
            elif self.path == "/":
                self._answer(HTTPStatus.OK, "text/html; charset=utf-8", page)
            elif self.path == f"/{NAME}":
                self._log()
            else:
                self.send_error(HTTPStatus.NOT_FOUND)

        def _log(self) -> None:
            """One byte range; the page never asks for the whole log."""
            wanted = _RANGE.fullmatch(self.headers.get("Range", ""))
            size = log.stat().st_size
            first, last = map(int, wanted.groups()) if wanted else (1, 0)
            if not first <= last < size:
                self.send_error(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
                return
            with log.open("rb") as file:
                file.seek(first)
                body = file.read(last - first + 1)
            span = {"Content-Range": f"bytes {first}-{last}/{size}"}
            self._answer(HTTPStatus.PARTIAL_CONTENT, "application/json; charset=utf-8", body, span)

        def _answer(
            self, code: HTTPStatus, kind: str, body: bytes, more: dict[str, str] | None = None
        ) -> None:
            self.send_response(code)
            same = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
            length = {"Content-Type": kind, "Content-Length": str(len(body))}
            for name, value in {**length, **same, **(more or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    made = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    made.daemon_threads = True
    return made


def write_page(folder: Path, out: Path) -> None:
    """A run's page with its episodes, as one file."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(run_page(folder, embed=True), encoding="utf-8")


def copy_log(folder: Path, out: Path) -> None:
    """A run's log, for a page that reads it in byte ranges."""
    shutil.copyfile(folder / NAME, out)
