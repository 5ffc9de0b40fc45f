"""PinScope's dashboard: ``streamlit run app.py``, the same as ``pinscope dashboard``.

Its settings stand in pinscope/dashboard/config.toml, to which .streamlit/config.toml is a link.
"""

import sys
from typing import TYPE_CHECKING

import streamlit as st

from pinscope.dashboard.middleware import middleware, origins_from_environment
from pinscope.dashboard.pages import SCRIPT
from pinscope.dashboard.routes import pages_loaded, routes
from pinscope.errors import InvalidParameter

if TYPE_CHECKING:
    from pinscope.manual.site import Site


def site() -> "Site":
    """The documentation; what it is made from is loaded when somebody reads it."""
    from pinscope.cli.main import command_line  # noqa: PLC0415 - loaded when somebody reads it
    from pinscope.cli.pages import whole_site  # noqa: PLC0415 - loaded when somebody reads it

    return whole_site(command_line())


try:
    named = origins_from_environment()
except InvalidParameter as error:
    sys.stderr.write(f"pinscope: {error}\n")
    sys.exit(error.exit_code)

app = st.App(SCRIPT, routes=routes(site), middleware=middleware(named), lifespan=pages_loaded)

if __name__ == "__main__":  # run as a plain script, which is what Streamlit's AppTest does
    from pinscope.dashboard.shell import show

    show()
