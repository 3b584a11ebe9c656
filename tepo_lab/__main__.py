"""`python -m tepo_lab`: the command line."""

from tepo_lab.cli import main

main()
