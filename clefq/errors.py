"""The one error tree: every fault a user can cause is a `ClefqError`, caught once in the CLI.

A message is one line, names the file or option at fault, and carries the fix. Faults found
together are reported together (`faults`): a configuration error lists every fault at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum


class ExitCode(IntEnum):
    """Process exit codes, in the words of the design: worst verdict wins."""

    PASS = 0
    FAIL = 1
    USAGE = 2
    INCONCLUSIVE = 3
    INVALID = 4


class ClefqError(Exception):
    """Something the user can mend.

    Args:
        message: One line: what is wrong, and where (file, line, option).
        fix: One line: the command or change that mends it.
        faults: Further faults of the same kind, one line each.
    """

    exit_code: ExitCode = ExitCode.USAGE

    def __init__(self, message: str, *, fix: str | None = None, faults: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix
        self.faults = tuple(faults)

    def __str__(self) -> str:
        text = self.message if self.fix is None else f"{self.message} Fix: {self.fix}"
        return "; ".join([text, *self.faults])


class InputError(ClefqError):
    """A file, folder or value that the user gave is wrong."""


class CheckpointError(InputError):
    """A model folder that is not a whole Clef checkpoint."""


class RecordError(InputError):
    """A record that breaks the record format."""


class PredictionsError(InputError):
    """A predictions file that is malformed or does not belong to the comparison."""


class GateFileError(InputError):
    """A gate file that does not follow its schema."""


class DefinitionError(InputError):
    """A set definition that does not follow its schema, or a source that lacks its files."""


class RecipeError(InputError):
    """A quantization recipe that would harm the checkpoint."""


class AuditError(ClefqError):
    """A checkpoint breaches a rule that makes it wrong to publish."""

    exit_code = ExitCode.FAIL


class MissingDependencyError(ClefqError):
    """A package or environment that this command needs is not installed.

    Args:
        what: What is missing.
        command: The exact command that installs it.
        where: Where to run it, such as ` in the checkout`; empty for anywhere.
    """

    def __init__(self, what: str, command: str, where: str = "") -> None:
        super().__init__(f"{what} is not installed.", fix=f"run `{command}`{where}.")


def missing_extra(what: str, extra: str) -> MissingDependencyError:
    """What an extra of clefq brings is missing; clefq is installed from its checkout.

    Args:
        what: What is missing.
        extra: The extra's name.
    """
    return MissingDependencyError(what, f"pip install '.[{extra}]'", " in clefq's checkout")
