"""MkDocs hook: the search, a dialog of the theme, gets a name for screen readers."""

from __future__ import annotations


def on_post_page(output: str, **_: object) -> str:
    """Return the HTML of a page with it."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"')
