"""Tells another program of a night: posts the report, signed, and tries again; it never fails the night."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from tuner.errors import InputError

#: Header with the signature, as ``sha256=HEX`` of the body; and the variable that holds the secret for it.
SIGNATURE, SECRET_VARIABLE = "X-Tuner-Signature", "TUNER_NOTIFY_SECRET"
#: Seconds that one attempt may take, and between attempts.
PATIENCE_S, PAUSES_S = 10.0, (1.0, 5.0, 20.0)


def check_url(url: str) -> None:
    """Checks an address before the night begins.

    Raises:
        InputError: It is no address of HTTP.
    """
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(f"--notify takes an address such as https://host/path, got {url!r}")


def signature(secret: str, body: bytes) -> str:
    """The signature of a body."""
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def notify(
    url: str, report: Mapping[str, Any], secret: str = "", pauses_s: tuple[float, ...] | None = None
) -> str:
    """Posts a report as JSON.

    Args:
        url: Where to.
        report: What to post.
        secret: Signs the body; nothing is signed if it is empty.
        pauses_s: Seconds to wait before each further attempt; `PAUSES_S` when None.

    Returns:
        Why it could not be posted; empty if it was.
    """
    body = json.dumps(report).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "tile-tuner"}
    if secret:
        headers[SIGNATURE] = signature(secret, body)
    why = ""
    for pause_s in (0.0, *(PAUSES_S if pauses_s is None else pauses_s)):
        time.sleep(pause_s)
        request = urllib.request.Request(url, data=body, headers=headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S):
                return ""
        except urllib.error.HTTPError as error:
            why = f"{error.code} {error.reason}"
            if error.code < 500 and error.code not in (408, 425, 429):
                break
        except (OSError, ValueError) as error:
            why = str(getattr(error, "reason", error))
    return f"the report could not be posted to {urllib.parse.urlsplit(url).hostname}: {why}"
