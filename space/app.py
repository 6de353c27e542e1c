"""The Space. ``python app.py`` here, or ``mdir-hf space``, starts it on this machine."""

from __future__ import annotations

try:
    import spaces  # on ZeroGPU, before torch
except ImportError:
    pass
else:

    @spaces.GPU(duration=1)
    def none_is_needed() -> None:
        """Do nothing: ZeroGPU starts no Space without such a function, and comparisons run on the processor."""


from carried import use_carried_wheel

use_carried_wheel()

from mdir_space.desk import Desk, Serving  # noqa: E402
from mdir_space.limits import limits_from_environment  # noqa: E402
from mdir_space.page import build_page, launch_options  # noqa: E402
from mdir_space.shipped_index import index_place  # noqa: E402
from mdir_space.visitor import signing_in_is_possible  # noqa: E402

desk = Desk(Serving(limits=limits_from_environment(), may_sign_in=signing_in_is_possible(), index=index_place()))
demo = build_page(desk)

if __name__ == "__main__":
    demo.launch(**launch_options(desk) | {"quiet": False})  # the log of a Space says when it listens
