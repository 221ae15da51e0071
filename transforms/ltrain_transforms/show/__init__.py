"""`ltrain show`: what an id stands for, looked up, and laid out for a terminal, a page, a program.

`subject` finds what is meant; `rollout`, `run`, `dataset` and `policy` look it up and give a `Tree`
or a `Report`; `terminal` and `page` lay either out.
"""
