"""Arguments of a command that are for another program."""

from typing import Any

from typer.core import TyperCommand


class PassThrough(TyperCommand):
    """A command whose arguments after -- are for another program: they become `context.args`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments before -- only."""
        end = args.index("--") if "--" in args else len(args)
        super().parse_args(ctx, args[:end])
        ctx.args = rest = args[end + 1 :]
        return rest
