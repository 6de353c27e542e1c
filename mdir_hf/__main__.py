"""Run ``mdir-hf`` as ``python -m mdir_hf``."""

from mdir_hf.cli import main

raise SystemExit(main())
