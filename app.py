"""PinScope's dashboard: ``streamlit run app.py``, the same as ``pinscope dashboard``.

Its settings stand in pinscope/dashboard/config.toml, to which .streamlit/config.toml is a link.
"""

import sys

import streamlit as st

from pinscope.cli.docs import whole_site
from pinscope.cli.main import command_line
from pinscope.dashboard.middleware import middleware
from pinscope.dashboard.origins import origins_from_environment
from pinscope.dashboard.shell import SCRIPT, show
from pinscope.dashboard.tabs import closing_tabs
from pinscope.errors import InvalidParameter

try:
    named = origins_from_environment()
except InvalidParameter as error:
    sys.stderr.write(f"pinscope: {error}\n")
    sys.exit(error.exit_code)

app = st.App(SCRIPT, middleware=middleware(whole_site(command_line()), named), lifespan=closing_tabs)

if __name__ == "__main__":  # run as a plain script, which is what Streamlit's AppTest does
    show()
