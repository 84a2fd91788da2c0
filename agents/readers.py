"""Readers: models that are asked what they think of given tokens, one checkpoint or server each.

`LocalReader` loads a checkpoint under transformers (extra `local`); `ServerReader` asks a server that
gives the log-probs of a prompt, as vLLM does. Two readers never need to be in memory at once: `reading`
opens one and closes it.
"""

import json
import math
import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from turnbench.agents import check_options, shipped_path
from turnbench.agents.replies import TOO_LONG, TRANSIENT
from turnbench.agents.retry import pause, retry_after
from turnbench.agents.servers import server_address, server_key
from turnbench.agents.sharing import shared
from turnbench.agents.spans import Host, Pair, check_ids, fit, hosts_of
from turnbench.agents.threads import LOADING
from turnbench.agents.transcripts import Conversation, Form, Scribe
from turnbench.envs.errors import ConfigError, LogError, ModelError, Unanswered, UnknownName, Unscored
from turnbench.envs.record import Trajectory

Spec = str | Mapping[str, Any]
CUT = "turns_cut_from_the_left"  # the key of a path's info: turns read without the beginning of their prompt
Row = dict[str, list[float]]


class Reader(Protocol):
    """What a model says of given tokens. `context` is the longest sequence; None is without bound."""

    name: str
    context: int | None
    vocabulary: int
    tokenizer: Any

    def measure(self, pairs: Sequence[Pair], names: Sequence[str] = ()) -> list[Row]:
        """For each pair: `logprob` and the named measures of its second ids, in nats at temperature 1."""
        ...

    def close(self) -> None:
        """Release what it holds."""
        ...


class Measured(NamedTuple):
    """What a reader said of a path: for each turn its measures by name, one number a token; and how many
    turns were read with the beginning of their prompt cut off, as the context is too short."""

    turns: list[Row]
    cut: int

    def column(self, name: str) -> list[list[float]]:
        """One measure, by turn."""
        return [turn[name] for turn in self.turns]

    def rounded(self) -> "Measured":
        """With the digits that float32 has, so that what is written and read again is the same."""
        turns = [{n: [float(f"{x:.7g}") for x in v] for n, v in turn.items()} for turn in self.turns]
        return Measured(turns, self.cut)


class LocalReader:
    """A checkpoint folder, or the name of a shipped one, under transformers.

    `device` and `dtype` as for HfModel. Only action tokens reach the network's head; sequences are
    batched by length, and what several begin with is computed once. Raises ModelError.
    """

    def __init__(self, path: str, *, device: str = "auto", dtype: str = "auto") -> None:
        from turnbench.agents.hf import load_checkpoint

        self._use(*load_checkpoint(path, device, dtype), path)

    @classmethod
    def of(cls, network: Any, tokenizer: Any, name: str = "live") -> "LocalReader":
        """A reader around a network in memory, in evaluation mode, which stays the caller's."""
        reader = cls.__new__(cls)
        reader._use(tokenizer, network, name)
        return reader

    def _use(self, tokenizer: Any, network: Any, name: str) -> None:
        from turnbench.agents.decode import Decoder
        from turnbench.agents.hf import Worker, context_of
        from turnbench.agents.threads import threads_for

        self.name, self.tokenizer = name, tokenizer
        self.context = context_of(network.config)
        self.vocabulary = int(network.config.get_text_config().vocab_size)
        decoder = Decoder(network, frozenset(), lambda ids, stop: False, max_rows=1, cache_bytes=0)
        self._worker = Worker(decoder, threads_for(network))

    def measure(self, pairs: Sequence[Pair], names: Sequence[str] = ()) -> list[Row]:
        """The network's measures; its own thread computes them. Raises ModelError."""
        check_ids(pairs, self.vocabulary)
        return self._worker.call(lambda decoder: decoder.score(pairs, names))

    def close(self) -> None:
        """End the thread and let the network go."""
        self._worker.close()
        del self._worker


class ServerReader:
    """`model` at an OpenAI-compatible server that gives a prompt's log-probs (vLLM's completions).

    `tokenizer`: the folder of the model's tokenizer, since ids are what is sent. `base_url` and
    `api_key_env` as for the `api` backend, `timeout` in seconds, `max_in_flight` requests at once. A busy
    server is asked up to `max_retries` times more.
    `context`: the longest sequence it takes, by default what the server says of it; one token less is
    read, as it wants room to add one.
    Measures but the log-prob: `top`, from the 20 most probable tokens.
    """

    def __init__(
        self,
        model: str,
        *,
        tokenizer: str,
        base_url: str | None = None,
        api_key_env: str = "OPENAI_API_KEY",
        context: int | None = None,
        timeout: float = 300.0,
        max_retries: int = 4,
        max_in_flight: int = 8,
    ) -> None:
        self.model, self.name = model, model
        self.max_retries, self._jitter = max_retries, random.Random()
        endpoint = server_address(base_url)
        self._key = server_key(api_key_env, endpoint)
        self._url = f"{endpoint}/completions"
        self.tokenizer = load_tokenizer(tokenizer)
        self.vocabulary, self.timeout = len(self.tokenizer), timeout
        longest = context or self._longest(f"{endpoint}/models")
        self.context = None if longest is None else longest - 1
        self._pool = ThreadPoolExecutor(max_in_flight, thread_name_prefix="turnbench-reader")

    def measure(self, pairs: Sequence[Pair], names: Sequence[str] = ()) -> list[Row]:
        """The server's log-probs; sequences that start others are sent once. Raises ModelError, Unanswered."""
        unknown = [name for name in names if name != "top"]
        if unknown:
            raise ConfigError(f"{unknown[0]} needs whole distributions, which servers don't give")
        check_ids(pairs, self.vocabulary)
        found: list[Row] = [{name: [] for name in ("logprob", *names)} for _ in pairs]
        hosts = hosts_of([((*prompt, *ids), len(prompt)) for prompt, ids in pairs])
        for host, row in zip(
            hosts, self._pool.map(lambda h: self._ask(h, bool(names)), hosts), strict=True
        ):
            for index, start, end in host.spans:
                for name in found[index]:
                    found[index][name] = row[name][start:end]
        return found

    def _longest(self, url: str) -> int | None:
        """The model's context, as vLLM lists it; None where a server doesn't say."""
        from httpx2 import HTTPError, get

        try:
            listed = get(url, headers=self._headers(), timeout=min(self.timeout, 10.0)).json()["data"]
            (longest,) = (row["max_model_len"] for row in listed if row["id"] == self.model)
            return int(longest)
        except (HTTPError, LookupError, TypeError, ValueError):
            return None

    def _headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._key}"} if self._key else {}

    def _ask(self, host: Host, top: bool) -> Row:
        """One number a token of the sequence, the first of which has none."""
        body = {
            "model": self.model,
            "prompt": list(host.ids),
            "max_tokens": 1,
            "temperature": 0,
            "prompt_logprobs": 20 if top else 1,
        }
        choice = self._choice(self._post(body))
        given = choice.get("prompt_logprobs")
        if not isinstance(given, list) or len(given) != len(host.ids):
            raise ModelError(
                f"{self.model} at {self._url} gives no log-probs of a prompt (prompt_logprobs), without "
                "which given text can't be scored: use vLLM's server, or a local checkpoint"
            )
        try:
            numbers = [
                _of_token(entry, token) for entry, token in zip(given[1:], host.ids[1:], strict=True)
            ]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ModelError(f"{self._url}: a prompt's log-probs are damaged: {error!r}") from error
        return {
            "logprob": [math.nan, *(number for number, _ in numbers)],
            "top": [math.nan, *(best for _, best in numbers)],
        }

    def _choice(self, text: str) -> Mapping[str, Any]:
        try:
            choice = json.loads(text)["choices"][0]
        except (ValueError, LookupError, TypeError) as error:
            raise ModelError(f"{self._url}: the answer has no choices: {text[:200]!r}") from error
        if not isinstance(choice, dict):
            raise ModelError(f"{self._url}: the answer has no choices: {text[:200]!r}")
        return choice

    def _post(self, body: Mapping[str, Any]) -> str:
        """The server's answer, asked for again while it is busy or out of reach."""
        from httpx2 import TransportError, post

        why = ""
        for tries in range(self.max_retries + 1):
            try:
                answer = post(self._url, json=dict(body), headers=self._headers(), timeout=self.timeout)
            except TransportError as error:
                why, after = f"no answer from {self._url}: {type(error).__name__}", None
            else:
                if answer.status_code < 300:
                    return str(answer.text)
                said = " ".join(answer.text.split())[:300]
                said = said.replace(self._key, "[key]") if self._key else said
                why = f"{self._url} answered {answer.status_code}: {said}"
                after = retry_after(answer.headers)
                if answer.status_code not in TRANSIENT and answer.status_code < 500:
                    raise Unscored(why) if TOO_LONG.search(said) else ModelError(why)
            if tries < self.max_retries:
                time.sleep(pause(tries, after, self._jitter))
        raise Unanswered(f"{why} (asked {self.max_retries + 1} times)")

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _of_token(entry: Mapping[str, Any], token: int) -> tuple[float, float]:
    """The token's log-prob, and the mean of the most probable 20, from {id: {logprob, rank}}."""
    mine = float(entry[str(token)]["logprob"])
    ranked = sorted((float(e["logprob"]) for e in entry.values()), reverse=True)[:20]
    return mine, math.fsum(ranked) / len(ranked)


def load_tokenizer(path: str) -> Any:
    """A folder's tokenizer; nothing is ever downloaded. Raises ModelError."""
    folder = shipped_path(path)
    if not folder.is_dir():
        raise ModelError(f"no tokenizer folder {str(folder)!r}")
    try:
        with LOADING:
            from transformers import AutoTokenizer

            return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except ImportError as error:
        raise ModelError("tokenizers need more packages: pip install 'turnbench[local]'") from error
    except Exception as error:
        raise ModelError(f"{str(folder)!r}: its tokenizer can't be loaded: {error}") from error


# --- by specification -----------------------------------------------------------------------------

READERS: dict[str, type[LocalReader] | type[ServerReader]] = {"hf": LocalReader, "api": ServerReader}


def open_reader(spec: Spec) -> Reader:
    """The reader of a specification: a checkpoint's folder or name, or a mapping.

    Mappings: `path` with LocalReader's options, and maybe `merge` with `alpha` (merging.py): the
    weights are moved by alpha from those of `path` towards those of `merge`. Or `backend: api` with
    ServerReader's options. Raises ConfigError, ModelError, UnknownName.
    """
    options = {"path": spec} if isinstance(spec, str) else dict(spec)
    backend = options.pop("backend", "hf")
    if backend not in READERS:
        raise UnknownName("backend of a reader", str(backend), READERS)
    towards, alpha = options.pop("merge", None), options.pop("alpha", None)
    cls = READERS[backend]
    check_options(f"a model of backend {backend!r}", cls, options, also=("merge", "alpha"))
    if towards is None and alpha is None:
        return cls(**options)
    if towards is None or alpha is None or backend != "hf":
        raise ConfigError(
            "a merged reference needs `path`, `merge` (both checkpoint folders) and `alpha`"
        )
    return _merged(options, str(towards), float(alpha))


def least_context(*specs: Spec) -> int | None:
    """The smallest of several models' contexts, without loading weights. Raises ModelError, ConfigError."""
    return _least(*map(_context, specs))


def _least(*contexts: int | None) -> int | None:
    return min((context for context in contexts if context is not None), default=None)


def _context(spec: Spec) -> int | None:
    options = {"path": spec} if isinstance(spec, str) else spec
    if options.get("backend", "hf") != "hf":
        return shared_reader(spec).context  # which holds no weights
    from turnbench.agents.hf import read_context

    path = str(options.get("path", ""))
    return shared("context", {"path": path}, lambda: read_context(path))


def _merged(options: dict[str, Any], towards: str, alpha: float) -> Reader:
    from turnbench.agents.merging import merge

    with tempfile.TemporaryDirectory(prefix="turnbench-merge-") as folder:
        merge(str(options["path"]), towards, alpha, Path(folder))
        reader = LocalReader(**{**options, "path": folder})
    reader.name = f"{options['path']} + {alpha:g} ({towards} - {options['path']})"
    return reader


@contextmanager
def reading(spec: Spec) -> Iterator[Reader]:
    """A reader that is closed, and its memory free, behind the block."""
    reader = open_reader(spec)
    try:
        yield reader
    finally:
        reader.close()


def shared_reader(spec: Spec) -> Reader:
    """One reader of that specification in a process, for all episodes; it stays in memory."""
    return shared("reader", {"path": spec} if isinstance(spec, str) else spec, lambda: open_reader(spec))


def measured(
    reader: Reader,
    scribe: Scribe,
    paths: Sequence[Trajectory],
    names: Sequence[str] = (),
    *,
    context: int | None = None,
) -> list[Measured]:
    """What a reader says of paths, all of them at once; `context` bounds what it reads, and a path's info
    tells how many of its turns were cut. Raises ModelError, Unscored."""
    found = read_fitted(reader, [fitted(reader, scribe, path, context) for path in paths], names)
    for path, each in zip(paths, found, strict=True):
        if each.cut:
            path.info[CUT] = each.cut
    return found


def fitted(
    reader: Reader, scribe: Scribe, path: Trajectory | Conversation, context: int | None = None
) -> tuple[list[Pair], int]:
    """A path as the token ids that a reader's context holds, or one of that length if it is less, and how
    many turns were cut (spans.fit). Raises Unscored where it can't be written in tokens."""
    try:
        return fit(scribe.pairs(path), _least(reader.context, context))
    except (ModelError, LogError) as error:
        raise Unscored(str(error)) from error


def read_fitted(
    reader: Reader, paths: Sequence[tuple[list[Pair], int]], names: Sequence[str] = ()
) -> list[Measured]:
    """The same of paths that are token ids already (`fitted`)."""
    rows = iter(reader.measure([pair for pairs, _ in paths for pair in pairs], names))
    return [Measured([next(rows) for _ in pairs], cut) for pairs, cut in paths]


def scribe_of(reader: Reader, form: Form = "auto") -> Scribe:
    """Who writes for a reader."""
    return Scribe(reader.tokenizer, reader.vocabulary, form)
