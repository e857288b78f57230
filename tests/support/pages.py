"""Pages of HTML as tests read them: every element with what is around it, and all texts."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import NamedTuple

Attributes = dict[str, str]
VOID = {"meta", "link", "br", "img", "hr", "input"}
"""Elements that have no end."""


class Element(NamedTuple):
    """An element, and the open ones around it, the outermost first."""

    tag: str
    attributes: Attributes
    around: tuple[tuple[str, Attributes], ...]


class Page(HTMLParser):
    """Checks that every element is closed in its place, and collects all of them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[tuple[str, Attributes]] = []
        self.elements: list[Element] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    @property
    def words(self) -> str:
        """All texts in one line."""
        return " ".join(" ".join(self.text).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append((tag, self.elements[-1].attributes))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), (tag, attrs)
        attributes = {name: value or "" for name, value in attrs}
        self.elements.append(Element(tag, attributes, tuple(self.open)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def named(self, tag: str) -> list[Attributes]:
        """Return the attributes of all elements of a name."""
        return [each.attributes for each in self.elements if each.tag == tag]
