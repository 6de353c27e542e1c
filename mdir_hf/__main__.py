"""``python -m mdir_hf`` is ``mdir-hf``."""

from mdir_hf.cli import main

raise SystemExit(main())
