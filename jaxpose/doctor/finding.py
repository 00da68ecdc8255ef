"""A finding of the doctor: a verdict, and a text with the fix."""

OK, WARNING, PROBLEM = "ok", "warning", "problem"

Finding = tuple[str, str]
