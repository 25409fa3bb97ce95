"""Asking before what cannot be undone."""

from __future__ import annotations

from tickmind.cli.output import confirm, note, person_there
from tickmind.errors import ConfigurationError

__all__ = ["agreed"]


def agreed(question: str, *, yes: bool) -> bool:
    """Whether to go on. Raises ConfigurationError where nobody is there to be asked."""
    if yes:
        return True
    if not person_there():
        raise ConfigurationError(f"{question} Nobody is at the terminal to answer: say --yes")
    if confirm(question):
        return True
    note("nothing was changed")
    return False
