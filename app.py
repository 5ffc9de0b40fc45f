"""PinScope's dashboard: ``streamlit run app.py``, the same as ``pinscope dashboard``.

Its settings stand in .streamlit/config.toml beside this file.
"""

import streamlit as st

from pinscope.dashboard.middleware import MIDDLEWARE
from pinscope.dashboard.shell import SCRIPT, show
from pinscope.dashboard.tabs import closing_tabs

app = st.App(SCRIPT, middleware=MIDDLEWARE, lifespan=closing_tabs)

if __name__ == "__main__":  # run as a plain script, which is what Streamlit's AppTest does
    show()
