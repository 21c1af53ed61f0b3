"""``python -m parsim`` is the command ``parsim``."""

from parsim.cli import main

main()
