"""Import every module of the instrumentation, as an agent's environment has it."""

import sys
from importlib import import_module
from pkgutil import walk_packages

import ltrain
import ltrain_instrument

FRAMEWORKS = ("langchain_core", "openinference")
"""Packages of extras, which an environment may lack."""

imported = 0
for module in walk_packages(ltrain_instrument.__path__, "ltrain_instrument."):
    if module.name.endswith(".probe"):  # a program
        continue
    try:
        import_module(module.name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in FRAMEWORKS:
            raise
    imported += 1
with ltrain.rollout(task="1"):
    ltrain.reward(1.0)
print(imported, "modules on Python", sys.version.split()[0])
