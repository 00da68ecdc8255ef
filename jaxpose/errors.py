"""The error for a user's mistake: a verb prints its text, a line for each mistake, and exits with 2."""


class UserError(ValueError):
    """A mistake of the user in an argument, an option, the data, or a file or folder that was named.

    The text has a line for each mistake. Each line names the thing, its value, the rule, and the fix. A mistake
    of the program, such as a function that is called with an array of the wrong shape, is another ValueError.
    """
