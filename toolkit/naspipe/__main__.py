"""``python -m naspipe``: the command line, for launchers that start a module."""

from naspipe.cli.app import main

main()
