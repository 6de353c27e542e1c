"""Start the Space. To run it locally, use ``python app.py`` in this folder, or ``mdir-hf space``."""

from __future__ import annotations

import os

if __name__ != "__mp_main__":  # multiprocessing imports this file again in each job's process
    try:
        import spaces  # on ZeroGPU, before torch
    except ImportError:
        pass
    else:

        @spaces.GPU(duration=1)
        def none_is_needed() -> None:
            """Do nothing. ZeroGPU requires a GPU function, but comparisons run on the CPU."""

    from carried import use_carried_wheel

    use_carried_wheel()

    from mdir_space.jobs.base_index import index_place
    from mdir_space.jobs.limits import limits_from_environment
    from mdir_space.jobs.service import Service, ServiceSettings
    from mdir_space.jobs.visitor import signing_in_is_possible
    from mdir_space.page.page import build_page, launch_options

    settings = ServiceSettings(
        limits=limits_from_environment(), may_sign_in=signing_in_is_possible(), index=index_place()
    )
    service = Service(settings)
    demo = build_page(service)

    if __name__ == "__main__":
        host = os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1")  # which a Space sets
        demo.launch(**launch_options(service, host) | {"quiet": False})  # the log of a Space shows when it listens
