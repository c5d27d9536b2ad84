"""``python -m robocache``: the same as the command ``robocache``."""

from .cli import main

raise SystemExit(main())
