"""The dashboard's server, with its safe settings, from wherever PinScope is installed."""

from __future__ import annotations

import errno
import os
import socket
import sys
import threading
import time
import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pinscope.dashboard.middleware import ADDRESS, SETTINGS
from pinscope.errors import InvalidParameter, NotPossible
from pinscope.text import quoted

if TYPE_CHECKING:
    from pinscope.dashboard.routes import MakeSite

DEFAULT_PORT = 8501


def port_from_environment() -> int:
    """The port in PINSCOPE_PORT, else 8501.

    Raises:
        InvalidParameter: PINSCOPE_PORT is no port number.
    """
    text = os.environ.get("PINSCOPE_PORT", "").strip()
    if not text:
        return DEFAULT_PORT
    if not (text.isascii() and text.isdecimal() and len(text) <= 5):
        raise InvalidParameter(f"PINSCOPE_PORT is {quoted(text)}; it must be a port number from 1 to 65535")
    return _checked_port(int(text))


def serve(port: int, open_browser: bool, site: MakeSite, named: Sequence[str] = ()) -> int:
    """Serve the dashboard on 127.0.0.1 until it is stopped (Ctrl+C or SIGTERM); the exit code.

    Args:
        port: 1 to 65535.
        open_browser: open the page in this machine's web browser once it answers.
        site: gives the documentation to serve beside the pages.
        named: origins under which it is reached, beside its own.

    Raises:
        InvalidParameter: no such port.
        NotPossible: another program listens on it, this user may not, or has no home folder.
    """
    _check_free(_checked_port(port))
    _check_home()
    _forget_variables_of_other_apps()
    import streamlit as st  # noqa: PLC0415 - takes a third of a second; the errors above should not wait for it
    from streamlit import config  # noqa: PLC0415

    from pinscope.dashboard.middleware import middleware  # noqa: PLC0415
    from pinscope.dashboard.pages import SCRIPT  # noqa: PLC0415
    from pinscope.dashboard.routes import routes  # noqa: PLC0415

    config.get_config_files = _no_files
    url = f"http://{ADDRESS}:{port}"
    sys.stdout.write(f"PinScope's dashboard is at {url} (Ctrl+C stops it)\n")
    sys.stdout.flush()
    if open_browser:
        threading.Thread(target=_open_when_ready, args=(port, url), daemon=True).start()
    with suppress(KeyboardInterrupt):  # raised again by the server after it has put everything away
        own = {"server.port": port, "logger.hideWelcomeMessage": True}  # the line above says all that it would
        app = st.App(SCRIPT, routes=routes(site), middleware=middleware(named))
        app.run(config={**SETTINGS, **own})
    return 0


def _forget_variables_of_other_apps() -> None:
    """Streamlit's settings in the environment were made for other apps: an address, a certificate, a theme."""
    for name in [name for name in os.environ if name.startswith("STREAMLIT_")]:
        del os.environ[name]


def _no_files(file_name: str) -> list[str]:  # noqa: ARG001 - the signature is Streamlit's
    """In place of Streamlit's function: it reads no files of settings from the user's home or the working folder."""
    return []


def _checked_port(port: int) -> int:
    if not 1 <= port <= 65535:
        raise InvalidParameter(f"{port} is no port number; it must be from 1 to 65535")
    return port


def _check_home() -> None:
    """Streamlit looks for settings there as soon as it is imported."""
    try:
        Path.home()
    except RuntimeError:
        raise NotPossible("the dashboard needs a home folder, and this user has none; set HOME") from None


def _check_free(port: int) -> None:
    """Find out now, in one line, what the server would find out with a log of its own."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does: closed connections linger
        try:
            probe.bind((ADDRESS, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise NotPossible(
                    f"port {port} is in use; stop the program that holds it, or set another: PINSCOPE_PORT={port + 1}"
                ) from None
            raise NotPossible(f"cannot listen on port {port}: {error.strerror}") from None


def _open_when_ready(port: int, url: str, seconds: float = 20.0) -> None:
    """Open the page once something accepts connections there."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with socket.create_connection((ADDRESS, port), timeout=0.2):
                break
        except OSError:
            time.sleep(0.1)
    webbrowser.open(url)
