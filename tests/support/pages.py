"""Pages of HTML as tests read them: every element with what is around it, and all texts."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import NamedTuple

Attributes = dict[str, str]
VOID = {"meta", "link", "br", "img", "hr", "input"}
"""Elements that have no end."""
OF_THE_RUN = re.compile(r"(\.\./)?[\w%][\w./%-]*$")
"""A link to a file in the report's folder, or below the run's."""
DATA = re.compile(r"data:(image/svg\+xml|text/csv);charset=utf-8,[\w%!$*+,;=:@/.~-]+$")
"""A figure in the page itself."""


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


def check_page(text: str) -> Page:
    """Check what holds for every page that is written to a file, and return it."""
    parsed = Page(text)
    tags = {each.tag for each in parsed.elements}
    forbidden = {"script", "link", "iframe", "img", "image", "object", "embed", "base", "form"}
    assert tags.isdisjoint(forbidden)
    for tag, attributes, _ in parsed.elements:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if "download" in attributes and DATA.match(attributes["href"]):
                continue
            if name in ("href", "xlink:href", "src", "action", "data"):
                assert value.startswith("#") or (tag == "a" and OF_THE_RUN.match(value)), value
    assert "@import" not in text
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", text))
    ids = [a["id"] for _, a, _ in parsed.elements if a.get("id")]
    assert len(ids) == len(set(ids))
    targets = {a.get("href", "#") for a in parsed.named("a")}
    links = {target[1:] for target in targets if target.startswith("#")}
    labels = {a["aria-labelledby"] for _, a, _ in parsed.elements if "aria-labelledby" in a}
    assert links | labels <= set(ids)
    values = (value for _, attributes, _ in parsed.elements for value in attributes.values())
    referred = {each for value in values for each in re.findall(r"url\(#([^)]*)\)", value)}
    referred |= {a["xlink:href"][1:] for a in parsed.named("use")}
    assert referred <= set(ids)
    assert all("scope" in attributes for attributes in parsed.named("th"))
    for tag, attributes, _ in parsed.elements:
        if attributes.get("role") == "img":
            assert attributes.get("aria-label"), tag
        if attributes.get("role") == "region":
            assert attributes.get("tabindex") == "0", "scrolled by keyboard"
            assert attributes.get("aria-label") or attributes.get("aria-labelledby")
    assert [a.get("lang") for a in parsed.named("html")] == ["en"]
    assert len(parsed.named("h1")) == 1
    assert "nan" not in text.lower().replace("finan", "")
    assert "None:" not in " ".join(parsed.text).replace("None: all journal lines", "")
    return parsed
