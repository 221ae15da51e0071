"""A task of Inspect with a grader that has no model of its own."""

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes, model_graded_fact
from inspect_ai.solver import generate


@task
def arith(count: int = 3) -> Task:
    samples = [
        Sample(id=f"a{n}", input=f"{n} + 2 = ? [[It is {n + 2}.]]", target=str(n + 2))
        for n in range(count)
    ]
    grader = model_graded_fact(template="{question} {answer} {criterion} [[GRADE: C]]")
    return Task(dataset=samples, solver=[generate()], scorer=[includes(), grader])
