"""The one exception for what the user can put right."""


class UserError(Exception):
    """The user's input is at fault. The message says what was given, what was expected, and what to do.

    The command line prints it on standard error, with no traceback, and exits with code 2.
    """
