"""The dashboard's server, with its safe settings, from wherever PinScope is installed."""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from pinscope.dashboard.middleware import ADDRESS, SETTINGS
from pinscope.errors import NotPossible

if TYPE_CHECKING:
    from pinscope.dashboard.routes import MakeSite


def serve(port: int, site: MakeSite, named: Sequence[str] = ()) -> int:
    """Serve the dashboard on 127.0.0.1 until it is stopped (Ctrl+C or SIGTERM); the exit code.

    Args:
        port: 1 to 65535.
        site: gives the documentation to serve beside the pages.
        named: origins under which it is reached, beside its own.

    Raises:
        NotPossible: another program listens on it, or this user may not.
    """
    _check_free(port)
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
