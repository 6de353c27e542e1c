"""HTML in which text is text: what is not ``Html`` is escaped when it goes into an element."""

from __future__ import annotations

import html

_VOID = {"meta", "link", "img", "br"}


class Html(str):
    """Markup that is safe as it stands."""

    __slots__ = ()


def escaped(content: str) -> Html:
    """Text as markup; markup as it is. Control characters, which HTML forbids, become blanks."""
    if isinstance(content, Html):
        return content
    shown = "".join(character if character >= " " or character in "\n\t" else " " for character in content)
    return Html(html.escape(shown))


def element(tag: str, *children: str, **attributes: str) -> Html:
    """Return an element.

    Args:
        tag: Its name.
        children: Text, which is escaped, or ``Html``.
        attributes: Text, which is escaped; underscores in names become hyphens, one at the end (``class_``) is dropped.
    """
    named = "".join(f' {name.rstrip("_").replace("_", "-")}="{escaped(str(v))}"' for name, v in attributes.items())
    if tag in _VOID:
        return Html(f"<{tag}{named}>")
    return Html(f"<{tag}{named}>{''.join(escaped(child) for child in children)}</{tag}>")


def joined(*parts: str) -> Html:
    """Put parts one after the other, each on its own line."""
    return Html("\n".join(escaped(part) for part in parts if part))
