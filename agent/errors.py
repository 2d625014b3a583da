"""Errors for people: each says what was wrong, where, and what was expected. `cli.main` turns them into exit code 2."""


class RanksightError(Exception):
    """Something that the user can mend; the text is all that is shown."""


class ConfigError(RanksightError):
    """A configuration file or option that can't be used."""


class RunDirError(RanksightError):
    """A run directory that can't be made, read or written."""
