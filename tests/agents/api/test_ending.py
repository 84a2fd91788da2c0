"""Close and Ctrl-C: prompt, and nothing is left behind."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from turnbench.agents.api import ApiModel
from turnbench.agents.model import Message, Prompt
from turnbench.envs.errors import ModelError

KEY = "sk-very-secret-0123456789"
HELLO = Prompt((Message("user", "hello"),), seed=7)


def one(model: ApiModel, prompt: Prompt = HELLO) -> Any:
    (answer,) = model.generate([prompt])
    return answer


def test_close_leaves_nothing(server: Any, make: Any) -> None:
    before = {t.name for t in threading.enumerate()}
    models = [make(), make()]
    for model in models:
        model.generate([HELLO] * 3)
    for model in models:
        assert "turnbench-api" in {t.name for t in threading.enumerate()}
        model.close()
        model.close()
    gc.collect()  # an unclosed socket would warn, which is an error here
    assert {t.name for t in threading.enumerate()} == before
    with pytest.raises(ModelError, match="closed"):
        models[0].generate([HELLO])
    assert one(make()).text == "hi"


def test_close_ends_calls_of_other_threads(server: Any, make: Any) -> None:
    server.play = [dict(delay=60)]
    model = make()
    errors: list[Exception] = []

    def work() -> None:
        try:
            model.generate([HELLO] * 100)
        except ModelError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    while not server.bodies:
        time.sleep(0.01)
    model.close()
    thread.join(timeout=20)
    assert "closed while it was asked" in str(errors[0])


def test_close_at_any_moment_strands_nobody(server: Any, make: Any) -> None:
    for _ in range(10):
        model = make()
        ended: list[str] = []

        def work(model: ApiModel = model, ended: list[str] = ended) -> None:
            try:
                while True:
                    model.generate([HELLO] * 3)
            except ModelError as error:
                ended.append(str(error))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        model.close()
        for thread in threads:
            thread.join(timeout=20)
        assert len(ended) == 4 and all("closed" in message for message in ended)


SCRIPT = """
import signal, sys, warnings
signal.signal(signal.SIGINT, signal.default_int_handler)  # who starts us in the background ignores it
warnings.simplefilter("error")
from turnbench.agents.api import ApiModel
from turnbench.agents.model import Message, Prompt
model = ApiModel("m", base_url=sys.argv[1])
try:
    model.generate([Prompt((Message("user", "x"),))] * 3)
except KeyboardInterrupt:
    model.close()
    print("interrupted")
"""


def test_ctrl_c_ends_promptly(server: Any) -> None:
    server.play = [dict(delay=60)]
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, server.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OPENAI_API_KEY": KEY},
    )
    while not server.bodies and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    try:
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (out, err, process.returncode) == ("interrupted\n", "", 0)
