"""Where an OpenAI-compatible server is, and the key that it wants."""

import os
import re
from urllib.parse import urlsplit

from turnbench.envs.errors import ConfigError, ModelError

OPENAI = "https://api.openai.com/v1"


def server_address(base_url: str | None) -> str:
    """The server's address: given, or from the environment, or OpenAI's. Raises ConfigError."""
    url = (base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI).strip().rstrip("/")
    parts = urlsplit(url)
    if "@" in parts.netloc or parts.query:
        raise ConfigError("base_url holds a password or a query; a key belongs into the environment")
    host = re.fullmatch(r"(\[[0-9a-f:]+\]|[^\s:]+)(:\d+)?", parts.netloc)
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError(f"base_url is {url!r}; an address like http://localhost:8000/v1 is wanted")
    return url


def server_key(variable: str, endpoint: str) -> str:
    """The key from the environment; empty for a server that may need none.

    No message here quotes a value: a key may stand where the variable's name belongs.
    """
    if not re.fullmatch(r"[A-Z_][A-Z0-9_]*", variable):
        raise ConfigError("api_key_env is the name of an environment variable, in capitals, not a key")
    key = os.environ.get(variable, "").strip()
    if not all("!" <= character <= "~" for character in key):
        raise ConfigError(f"the key in the environment variable {variable} has blanks or odd characters")
    if not key and endpoint == OPENAI:
        raise ModelError(
            f"no key for {OPENAI}: set the environment variable {variable}, or base_url "
            "(or OPENAI_BASE_URL) for another server"
        )
    return key
