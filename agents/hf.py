"""HfModel: a local checkpoint under transformers (extra `local`).

Token in, token out: what was sampled is never tokenised again. Prompts from all threads are decoded
side by side by one worker; a completion depends on its prompt, sampling and seed alone (exactly so in
float32, up to rounding of the probabilities).
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from turnbench.agents import shipped_path
from turnbench.agents.model import Answer, Completion, Prompt, Sampling
from turnbench.agents.spans import check_ids
from turnbench.agents.threads import LOADING, limit_threads, threads_for
from turnbench.envs.errors import ModelError
from turnbench.envs.record import Failure, Outcome, Usage

if TYPE_CHECKING:
    from turnbench.agents.decode import Decoder
    from turnbench.agents.lanes import Row

T = TypeVar("T")
DTYPES = ("auto", "float32", "bfloat16", "float16")
TOKENIZERS = ("*token*", "vocab*", "*.model")  # the files that a tokenizer is read from


class HfModel:
    """A causal language model from a checkpoint folder, or by the name of one that is shipped.

    `device` "auto" takes a GPU where there is one; `dtype` "auto" is float32 on a CPU and the
    checkpoint's own type elsewhere. At most `max_batch` completions are decoded at once. Up to
    `cache_bytes` of past sequences' keys and values are kept (in the device's memory), so that a later
    turn or a fork only computes its new tokens. Networks of less than 50 M parameters run on one CPU
    thread; this concerns the model's own worker, not the program's other threads.
    Raises ModelError where the folder can't be loaded.
    """

    def __init__(
        self,
        path: str,
        *,
        name: str | None = None,
        sampling: Sampling = Sampling(),
        device: str = "auto",
        dtype: str = "auto",
        max_batch: int = 64,
        cache_bytes: int = 2**30,
    ) -> None:
        tokenizer, network = load_checkpoint(path, device, dtype)
        self._use(network, tokenizer, name or path, sampling, max_batch, cache_bytes)

    @classmethod
    def of(
        cls,
        network: Any,
        tokenizer: Any,
        *,
        name: str = "live",
        sampling: Sampling = Sampling(),
        max_batch: int = 64,
        cache_bytes: int = 2**30,
    ) -> Self:
        """A model around a network in memory, which stays the caller's.

        The network is read, never changed; it must be in evaluation mode while it is asked. Whoever
        changes its weights calls `forget` before asking again.
        """
        model = cls.__new__(cls)
        model._use(network, tokenizer, name, sampling, max_batch, cache_bytes)
        return model

    def _use(
        self,
        network: Any,
        tokenizer: Any,
        name: str,
        sampling: Sampling,
        max_batch: int,
        cache_bytes: int,
    ) -> None:
        from turnbench.agents.chat import Chat
        from turnbench.agents.decode import Decoder

        if max_batch < 1 or cache_bytes < 0:
            raise ModelError(f"max_batch is {max_batch} and cache_bytes {cache_bytes}: too small")
        self.name, self.sampling = name, sampling
        self.tokenizer, self.network = tokenizer, network
        self.context_length = context_of(network.config)
        self.chat = Chat(tokenizer, network.config.get_text_config().vocab_size, ends_of(network))
        decoder = Decoder(
            network, self.chat.ends, self.chat.stopped, max_rows=max_batch, cache_bytes=cache_bytes
        )
        self._worker = Worker(decoder, threads_for(network))
        self._finalizer = weakref.finalize(self, self._worker.close)

    def forget(self) -> None:
        """Drop all that was computed with the network's weights as they were; nothing may be asked
        meanwhile. Afterwards answers are those of a model that was made anew."""
        self._worker.call(lambda decoder: decoder.forget())

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling | None = None) -> list[Answer]:
        """One answer for each prompt, in order; `sampling` None takes the model's own.

        Text is cut before a stop string; the ids keep all that was sampled. A prompt that leaves no
        room in the context is a Failure with outcome `truncated`. Raises ModelError where a prompt
        can't be written (see Chat.encode), and after `close`.
        """
        rows = [self._row(prompt, sampling or self.sampling) for prompt in prompts]
        self._worker.submit([row for row in rows if not isinstance(row, Failure)])
        return [row if isinstance(row, Failure) else self._answer(row.done.result()) for row in rows]

    def logprobs(self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[list[float]]:
        """Natural log-probs at temperature 1 of given ids after given prompt ids, for each pair.

        Trajectory.sequences() has such pairs; turns that extend each other are computed once. Raises
        ModelError where a prompt is empty, too long, or has ids outside the vocabulary.
        """
        return [row["logprob"] for row in self.measure(sequences)]

    def measure(
        self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]], measures: Sequence[str] = ()
    ) -> list[dict[str, list[float]]]:
        """The same as `logprob`, and what else is named of measure.py's MEASURES, one number a token."""
        pairs = [(tuple(prompt), tuple(ids)) for prompt, ids in sequences]
        check_ids(pairs, self.chat.vocabulary)
        longest = max((len(prompt) + len(ids) for prompt, ids in pairs), default=0)
        if self.context_length is not None and longest > self.context_length:
            raise ModelError(
                f"a sequence of {longest} tokens; the model's context is {self.context_length}"
            )
        return self._worker.call(lambda decoder: decoder.score(pairs, measures))

    def close(self) -> None:
        """End the worker thread; what still waits is answered by a Failure."""
        self._finalizer()

    def _row(self, prompt: Prompt, sampling: Sampling) -> "Row | Failure":
        from turnbench.agents.lanes import Row

        ids, limit = self.chat.encode(prompt), sampling.max_tokens
        if self.context_length is not None:
            limit = min(limit, self.context_length - len(ids))
        if limit < 1:
            return Failure(
                Outcome.TRUNCATED,
                f"the prompt has {len(ids)} tokens and the model's context is {self.context_length}",
            )
        return Row(ids, sampling, limit, np.random.default_rng(prompt.seed).random(limit))

    def _answer(self, row: "Row") -> Answer:
        if row.failure is not None or row.finish is None:
            return row.failure or Failure(Outcome.INFRA_ERROR, "the model gave no answer")
        said = row.ids[:-1] if row.ids[-1] in self.chat.ends else row.ids
        return Completion(
            self.chat.answer(said, row.sampling.stop),
            row.finish,
            Usage(1, len(row.prompt), row.cached, len(row.ids), 0.0),
            row.prompt,
            tuple(row.ids),
            tuple(row.logprobs),
        )


class Worker:
    """The one thread that runs a decoder, for any number of threads that wait for its rows."""

    def __init__(self, decoder: "Decoder", threads: int | None) -> None:
        self._decoder, self._threads = decoder, threads
        self._changed = threading.Condition()
        self._rows: deque[Row] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="turnbench-hf", daemon=True)
        self._thread.start()

    def submit(self, rows: Sequence["Row"]) -> None:
        """Queue rows; each one's `done` tells when it is complete. Raises ModelError once closed."""
        with self._changed:
            if self._closed:
                raise ModelError("the model has been closed")
            self._rows.extend(rows)
            self._changed.notify()

    def call(self, function: "Callable[[Decoder], T]") -> T:
        """Run a function of the decoder between two steps. Raises what it raises."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(function(self._decoder))
            except BaseException as error:
                future.set_exception(error)

        with self._changed:
            if self._closed:
                raise ModelError("the model has been closed")
            self._calls.append(run)
            self._changed.notify()
        return future.result()

    def close(self) -> None:
        """End the thread after its current step."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        if self._threads is not None:
            limit_threads(self._threads)
        while (work := self._next()) is not None:
            rows, calls = work
            for call in calls:
                call()
            self._guarded(rows)
        for call in self._calls:
            call()
        for row in [*self._decoder.live, *self._rows]:
            row.failure = Failure(Outcome.INFRA_ERROR, "the model was closed")
            row.done.set_result(row)

    def _next(self) -> "tuple[list[Row], list[Callable[[], None]]] | None":
        """What to do next: new rows and calls; waits while there is nothing. None when closed."""
        with self._changed:
            while not (self._closed or self._rows or self._calls or self._decoder.live):
                self._changed.wait()
            if self._closed:
                return None
            count = min(self._decoder.room(), len(self._rows))
            calls = list(self._calls)
            self._calls.clear()
            return [self._rows.popleft() for _ in range(count)], calls

    def _guarded(self, rows: "list[Row]") -> None:
        """Admit rows and do a step. After an error all rows start again, in smaller company."""
        live = [*self._decoder.live, *rows]
        try:
            if rows:
                self._decoder.admit(rows)
            if self._decoder.live:
                self._decoder.step()
        except Exception as error:
            self._recover([row for row in live if not row.done.done()], error)

    def _recover(self, rows: "list[Row]", error: Exception) -> None:
        self._decoder.reset()
        if len(rows) == 1:
            rows[0].failure = Failure.of(error, Outcome.INFRA_ERROR)
            rows[0].done.set_result(rows[0])
            return
        size = -(-len(rows) // 2) if _out_of_memory(error) else 1
        for start in range(0, len(rows), size):
            self._alone(rows[start : start + size])

    def _alone(self, rows: "list[Row]") -> None:
        for row in rows:
            row.restart()
        try:
            self._decoder.admit(rows)
            while self._decoder.live:
                self._decoder.step()
        except Exception as error:
            self._recover([row for row in rows if not row.done.done()], error)


def _out_of_memory(error: Exception) -> bool:
    import torch

    kinds = (torch.OutOfMemoryError, MemoryError)
    return isinstance(error, kinds) or "allocate memory" in str(error)


def _folder(path: str) -> Path:
    folder = shipped_path(path)
    if not folder.is_dir():
        raise ModelError(
            f"no checkpoint folder {str(folder)!r} (shipped with turnbench: turnbench/tiny)"
        )
    if not (folder / "config.json").is_file():
        raise ModelError(f"{str(folder)!r} is no checkpoint: it holds no config.json")
    if not any(True for pattern in TOKENIZERS for _ in folder.glob(pattern)):
        raise ModelError(f"{str(folder)!r} holds no tokenizer")
    return folder


def load_checkpoint(path: str, device: str = "auto", dtype: str = "auto") -> tuple[Any, Any]:
    """The tokenizer and the network of a checkpoint folder, or of a shipped one by its name; nothing is
    ever downloaded. Raises ModelError."""
    return _load(path, device, dtype, "AutoModelForCausalLM")


def context_of(config: Any) -> int | None:
    """The longest sequence that a network's configuration allows, if it tells."""
    found: int | None = getattr(config.get_text_config(), "max_position_embeddings", None)
    return found


def read_context(path: str) -> int | None:
    """The longest sequence that a checkpoint's settings allow, without loading it. Raises ModelError."""
    folder = _folder(path)
    try:
        with LOADING:
            from transformers import AutoConfig

            return context_of(AutoConfig.from_pretrained(folder, local_files_only=True))
    except Exception as error:
        raise ModelError(f"{str(folder)!r} can't be loaded: {error}") from error


def load_classifier(path: str, device: str = "auto", dtype: str = "auto") -> tuple[Any, Any]:
    """The same with a head that classifies sequences."""
    return _load(path, device, dtype, "AutoModelForSequenceClassification")


def _load(path: str, device: str, dtype: str, kind: str) -> tuple[Any, Any]:
    folder = _folder(path)
    if dtype not in DTYPES:
        raise ModelError(f"unknown dtype {dtype!r}; known: {', '.join(DTYPES)}")
    with LOADING:
        return _read(folder, device, dtype, kind)


def _read(folder: Path, device: str, dtype: str, kind: str) -> tuple[Any, Any]:
    try:
        import torch
        import transformers
        from transformers.utils import logging
    except ImportError as error:
        raise ModelError("local models need more packages: pip install 'turnbench[local]'") from error
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if dtype == "auto" and device == "cpu":
        dtype = "float32"
    bars = logging.is_progress_bar_enabled()
    # The progress to be shown is the run's, not that of reading a file.
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        made = getattr(transformers, kind)
        network: Any
        network, loaded = made.from_pretrained(
            folder, dtype=dtype, local_files_only=True, output_loading_info=True
        )
        if missing := sorted(loaded["missing_keys"]):
            raise ModelError(
                f"{str(folder)!r} lacks weights of its own network, among them {', '.join(missing[:3])}"
            )
        return tokenizer, network.to(device).eval().requires_grad_(False)
    except ModelError:
        raise
    except Exception as error:  # damaged files and unknown devices raise all kinds
        raise ModelError(f"{str(folder)!r} can't be loaded: {error}") from error
    finally:
        if bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def ends_of(network: Any) -> list[int]:
    """The ids that the checkpoint's own settings name as ends."""
    ends: list[int] = []
    for config in (network.generation_config, network.config):
        found = getattr(config, "eos_token_id", None)
        ends += [] if found is None else [found] if isinstance(found, int) else found
    return ends
