"""What the doctor says of one thing: a verdict, and what was found with the way to change it."""

OK, WARNING, PROBLEM = "ok", "warning", "problem"

Finding = tuple[str, str]
