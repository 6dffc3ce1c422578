"""`python -m meshwright`: the command."""

from meshwright.cli import main

main()
