"""The calculator, an MCP server that all episodes of a process share."""

import re

import verifiers.v1 as vf

EXPRESSION = re.compile(r"\s*(\d{1,9})\s*([-+*/])\s*(\d{1,9})\s*")


class CalculatorConfig(vf.SharedToolsetConfig):
    pass


class Calculator(vf.Toolset[CalculatorConfig]):
    server_name = "calculator"

    @vf.tool
    async def calculate(self, expression: str) -> str:
        """Compute two numbers with + - * or /, such as 12 * 3."""
        found = EXPRESSION.fullmatch(expression)
        if found is None:
            return "error: write two whole numbers with + - * or / between them"
        left, operator, right = int(found[1]), found[2], int(found[3])
        if operator == "/":
            return str(left // right) if right else "error: division by zero"
        return str({"+": left + right, "-": left - right, "*": left * right}[operator])


if __name__ == "__main__":
    Calculator.run()
