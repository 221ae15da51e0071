"""`python -m ltrain`."""

from ltrain.cli import main

main()
