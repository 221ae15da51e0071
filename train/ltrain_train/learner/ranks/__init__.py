"""The ranks of a learner: where they run, and what each of them does.

Its modules import Ray or verl, so this face imports none of them.
"""
