"""Show Sphinx roles in docstrings, such as ``:class:`~package.Name```, as plain code on the site."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_ROLE = re.compile(r":(?:class|meth|func|data|attr|mod|exc):`(~?)([\w.]+)`")


def without_roles(text: str) -> str:
    """Replace each role by its displayed name, as code."""

    def shown(match: re.Match[str]) -> str:
        return f"``{match[2].rpartition('.')[2] if match[1] else match[2]}``"

    return _ROLE.sub(shown, text)


class Roles(Extension):
    """Replaces the roles in every docstring on the site."""

    def on_object(self, *, obj: Object, **_: Any) -> None:  # noqa: ANN401 - griffe's signature
        """Change the docstring of an object in place."""
        if obj.docstring is not None:
            obj.docstring.value = without_roles(obj.docstring.value)
