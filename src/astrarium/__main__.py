"""`python -m astrarium` is `astrarium`."""

from astrarium.cli.main import main

main()
