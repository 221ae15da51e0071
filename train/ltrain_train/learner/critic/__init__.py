"""The critic: a network beside the policy that estimates returns, and the advantages from it.

Its modules import torch or verl, so this face imports none of them.
"""
