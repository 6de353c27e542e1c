"""Which lines of a Markdown text are code: what looks like a marker in there is none.

A reading of CommonMark's block structure that knows just enough to say so: block quotes, list items, paragraphs (whose
lines may lazily leave those), HTML blocks, indented code and fenced code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_FENCE = re.compile(r"(?P<fence>`{3,}|~{3,})(?P<info>.*)")
_ITEM = re.compile(r"(?P<mark>[-+*]|(?P<number>\d{1,9})[.)])(?P<gap> {1,4}(?=[^ ])| (?= {4})|(?= *$))")
_RULE = re.compile(r"(([-_*]) *)(?:\2 *){2,}$")
_OTHER_START = re.compile(r"#{1,6}(?: |$)")
_RAW_TAGS = "pre|script|style|textarea"
# What opens an HTML block, and what ends it; None: a blank line.
_HTML = (
    (re.compile(rf"<(?:{_RAW_TAGS})(?:[\s>]|$)", re.I), re.compile(rf"</(?:{_RAW_TAGS})>", re.I)),
    (re.compile(r"<!--"), re.compile(r"-->")),
    (re.compile(r"<\?"), re.compile(r"\?>")),
    (re.compile(r"<![A-Za-z]"), re.compile(r">")),
    (re.compile(r"</?(?:center|details|div|h[1-6]|hr|iframe|li|ol|p|section|summary|table|tbody|td|th|thead|tr|ul)"
                r"(?:[\s>]|/>|$)", re.I), None),
)  # fmt: skip
_LONE_TAG = re.compile(r"</?[A-Za-z][\w-]*(?:\s[^<>]*)?/?>\s*$")  # the last kind; it cannot interrupt a paragraph


@dataclass
class _State:
    """What is open: containers, and the leaf in the innermost of them."""

    containers: list[int]  # width of a list item's content indent; 0 for a block quote
    fence: str = ""
    fence_indent: int = 0
    html_end: re.Pattern[str] | None = None
    in_html: bool = False
    in_paragraph: bool = False

    def close_leaf(self) -> None:
        self.fence, self.in_html, self.html_end, self.in_paragraph = "", False, None, False


def code_lines(lines: list[str]) -> tuple[list[bool], bool]:
    """Tell for each line whether it belongs to a fenced code block.

    Args:
        lines: The text, without line ends.

    Returns:
        One truth value per line, and whether the text ends inside of a block that nothing closes.
    """
    state = _State([])
    inside = [_is_code(line.expandtabs(4), state) for line in lines]
    return inside, bool(state.fence) and not state.containers


def _is_code(text: str, state: _State) -> bool:
    """Take one line; tell whether it is part of a fenced block, its fences included."""
    rest, n_matched = _continued(text, state.containers)
    if n_matched < len(state.containers):
        if _is_lazy(rest, state, leaves_item=state.containers[n_matched] > 0):
            return False
        del state.containers[n_matched:]
        state.close_leaf()
    if state.fence:
        stripped = rest.strip()
        if _indent(rest) <= 3 and len(stripped) >= len(state.fence) and set(stripped) == {state.fence[0]}:
            state.close_leaf()
        return True
    if state.in_html:
        ends = not rest.strip() if state.html_end is None else state.html_end.search(rest) is not None
        if ends:
            state.close_leaf()
        return False
    return _opens_code(rest, state)


def _continued(text: str, containers: list[int]) -> tuple[str, int]:
    """Return what is left of a line behind the marks of the open containers, and how many of them go on in it."""
    for number, width in enumerate(containers):
        if width:
            if text.strip() and _indent(text) < width:
                return text, number
            text = text[width:]
        else:
            stripped = text.lstrip(" ")
            if _indent(text) > 3 or not stripped.startswith(">"):
                return text, number
            text = stripped[1:].removeprefix(" ")
    return text, len(containers)


def _is_lazy(rest: str, state: _State, *, leaves_item: bool) -> bool:
    """Tell whether a line outside of its containers only goes on with their paragraph."""
    if not state.in_paragraph or not rest.strip():
        return False
    return _indent(rest) > 3 or not _starts_block(rest.lstrip(" "), in_paragraph=not leaves_item)


def _starts_block(text: str, *, in_paragraph: bool) -> bool:
    fence = _FENCE.match(text)
    if fence is not None and not ("`" in fence["info"] and fence["fence"][0] == "`"):
        return True
    if text.startswith(">") or _OTHER_START.match(text) or _RULE.match(text):
        return True
    return _item(text, in_paragraph=in_paragraph) is not None or any(start.match(text) for start, _ in _HTML)


def _item(text: str, *, in_paragraph: bool) -> re.Match[str] | None:
    """Return the mark of a list item; only one with text, and numbered 1, can interrupt a paragraph."""
    match = _ITEM.match(text)
    if match is None or _RULE.match(text):
        return None
    if in_paragraph and (not text[match.end() :].strip() or int(match["number"] or 1) != 1):
        return None
    return match


def _opens_code(rest: str, state: _State) -> bool:
    """Open the blocks that a line begins; tell whether the last one is a fenced block."""
    while True:
        indent, text = _indent(rest), rest.lstrip(" ")
        if not text or (indent > 3 and not state.in_paragraph):
            state.in_paragraph = False
            return False
        if indent > 3:
            return False
        if text.startswith(">"):
            state.containers.append(0)
            rest = text[1:].removeprefix(" ")
            state.in_paragraph = False
            continue
        item = _item(text, in_paragraph=state.in_paragraph)
        if item is None:
            break
        gap = len(item["gap"]) or 1
        state.containers.append(indent + len(item["mark"]) + gap)
        rest = text[item.end() :]
        state.in_paragraph = False
    fence = _FENCE.match(text)
    if fence is not None and not ("`" in fence["info"] and fence["fence"][0] == "`"):
        state.close_leaf()
        state.fence = fence["fence"]
        return True
    for start, end in _HTML:
        if start.match(text):
            state.close_leaf()
            state.in_html = end is None or end.search(text) is None
            state.html_end = end
            return False
    if _LONE_TAG.match(text) and not state.in_paragraph:
        state.in_html, state.html_end = True, None
        return False
    state.in_paragraph = not (_OTHER_START.match(text) or _RULE.match(text))
    return False


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip(" "))
