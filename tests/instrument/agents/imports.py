"""Imports its arguments, and prints the instrumentors that were loaded, in order."""

import builtins
import sys

import ltrain

if "configure" in sys.argv:
    ltrain.configure()
for name in sys.argv[1:]:
    if name != "configure":
        __import__(name)
print(*getattr(builtins, "instrumented", []))
