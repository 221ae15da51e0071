"""Groups of commands on the command line."""

from typing import Any

from typer.core import TyperGroup

SENTENCE = 200
"""Characters that the first sentence of a command may have in the help of its group."""


class CommandGroup(TyperGroup):
    """Lists each command with its first sentence, which Click cuts at the end of the line."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the names and sentences of the commands."""
        commands = self.commands.items()
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(SENTENCE)) for name, one in commands])
