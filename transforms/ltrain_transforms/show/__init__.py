"""`ltrain show`: find what an id names, and render it for a terminal, an HTML page or a program.

`subject` finds what an id names. `rollout`, `run`, `dataset` and `policy` read it and return a
`RolloutTree` or a `Report`. `terminal` and `page` render either.
"""
