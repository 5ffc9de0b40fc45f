"""What every page stands in: the page configuration and the navigation. This is the script that Streamlit serves."""

from __future__ import annotations

import streamlit as st

from pinscope.dashboard.pages import HOME, PAGES, SCRIPT
from pinscope.dashboard.widgets import errors_shown, help_links

_FOLDER = SCRIPT.parent


def show() -> None:
    """Draw the page that the browser asks for."""
    st.set_page_config(page_title="PinScope", page_icon=str(_FOLDER / "icon.svg"), layout="wide")
    st.logo(str(_FOLDER / "logo.svg"), size="large")
    st.html(_FOLDER / "style.css")
    pages = {st.Page(entry.path, title=entry.title, icon=entry.icon, default=entry is HOME): entry for entry in PAGES}
    page = st.navigation(list(pages), position="top")
    with errors_shown():
        page.run()
    help_links({"Help with this page": pages[page].help, "Glossary": "glossary"})


if __name__ == "__main__":
    show()
