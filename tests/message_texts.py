"""The texts of the messages with which the package ends a run, read from its source.

A message is the argument of a `raise` of one of `ENDS`, a line of a rule about options, or a text that is kept under
the name of a problem until it is raised. What is inserted at run time is a word in capitals: PATH, N.
"""

import ast
import functools
import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "jaxpose"
ENDS = {"UserError", "DamagedFile", "NotRegularFile", "OptionError", "Diverged", "UnusableClips", "ConnectionError"}
# Files in which every text that a function yields is a broken rule.
RULES = {"config/rules.py", "config/check.py"}
_IS_PROBLEM = re.compile(r"(^|_)(problems?|refusal)$")
_NUMBERS = {"len", "sum", "max", "min", "abs", "round"}
_METHODS = {"get", "strip", "rstrip", "splitlines", "partition", "as_posix", "with_name", "with_suffix", "replace"}
_PLAIN = {
    "error": "REASON", "strerror": "REASON", "n": "N", "i": "N", "k": "N", "count": "N", "gethostname": "HOST",
    "OURS": "VARIABLE", "there": "PATH", "given": "VALUE",
    "hint": "[; did you mean NAME?]", "explain": ": VERB takes LIST",
    "before": "", "full_name": "OPTION", "type_name": "a KIND",
}  # fmt: skip
_MOST_TEXTS, _MOST_INSERTED, _DEEPEST = 4, 160, 8


@functools.cache
def messages(file: Path) -> list[str]:
    """Returns the texts of the messages of a file of the package, in the order of its lines, each once."""
    module = _Module(file)
    found = [text for node, scope in module.sources() for text in module.texts(node, scope, 0)]
    return list(dict.fromkeys(line for text in found for line in text.splitlines() if _says_something(line)))


def raises_user_error(file: Path) -> bool:
    """Returns whether a file makes one of the errors that end a run."""
    tree = ast.parse(file.read_text())
    return any(isinstance(node, ast.Call) and _name(node.func) in ENDS for node in ast.walk(tree))


def _has_word(text: str) -> bool:
    return bool(re.search(r"[a-z]{2}", text))


def _says_something(text: str) -> bool:
    # These have a twin with the name of the option alone.
    is_twin = re.search(r"FOUNDNAME|DOTNAME|--config\.OPTION", text)
    return len(re.findall(r"\b[a-z]{2,}\b", text)) >= 3 and not is_twin


class _Module:
    """The functions and constants of a file, and what its names stand for."""

    def __init__(self, file: Path):
        self._is_rules = file.relative_to(PACKAGE).as_posix() in RULES
        self._tree = ast.parse(file.read_text())
        self._functions = {node.name: node for node in ast.walk(self._tree) if isinstance(node, ast.FunctionDef)}
        self._scope_of: dict[ast.AST, ast.AST] = {}
        for function in self._functions.values():
            # An inner function comes after the one around it, so it has the last word.
            self._scope_of.update(dict.fromkeys(ast.walk(function), function))
        self._parent_of = {child: node for node in ast.walk(self._tree) for child in ast.iter_child_nodes(node)}
        self._constants = dict(_assignments(self._tree.body))
        for node in self._tree.body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jaxpose."):
                self._constants |= _imported_constants(node)

    def sources(self) -> Iterator[tuple[ast.expr, ast.AST | None]]:
        """Yields each expression that makes a message, with the function around it."""
        for node in ast.walk(self._tree):
            scope = self._scope_of.get(node)
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and self._ends(node.exc):
                yield (node.exc.args[0] if _name(node.exc.func) in ENDS else node.exc), scope
            elif isinstance(node, ast.Yield) and node.value is not None and self._is_rules:
                yield node.value, scope
            elif isinstance(node, ast.Return | ast.Yield) and node.value is not None and _is_problem_function(scope):
                yield node.value, scope
            elif isinstance(node, ast.Assign | ast.AugAssign) and any(map(_is_problem_name, _targets(node))):
                yield node.value, scope
            elif isinstance(node, ast.Call) and _name(node.func) == "append":
                if isinstance(node.func, ast.Attribute) and _is_problem_name(node.func.value):
                    yield node.args[0], scope

    def _ends(self, call: ast.Call) -> bool:
        """Whether the call makes an error that ends a run, itself or by a function of this file."""
        function = self._functions.get(_name(call.func))
        made = bool(function) and any(
            isinstance(node, ast.Return) and isinstance(node.value, ast.Call) and _name(node.value.func) in ENDS
            for node in ast.walk(function)
        )
        return (_name(call.func) in ENDS and bool(call.args)) or made

    def texts(self, node: ast.expr, scope: ast.AST | None, depth: int) -> list[str]:
        """Returns the texts that an expression may have; [] if that is decided at run time."""
        if depth > _DEEPEST:
            return []
        deeper = depth + 1
        match node:
            case ast.Constant(value=str() as text):
                return [text]
            case ast.JoinedStr():
                parts = [self._part(value, scope, deeper) for value in node.values]
                return ["".join(chosen) for chosen in itertools.islice(itertools.product(*parts), 8)]
            case ast.BinOp(op=ast.Add()):
                sides = [self.texts(side, scope, deeper) or [_placeholder(side)] for side in (node.left, node.right)]
                return ["".join(chosen) for chosen in itertools.product(*sides)]
            case ast.BinOp(op=ast.Mult()):
                return [f"[{text}]" for text in self.texts(node.left, scope, deeper)]
            case ast.IfExp():
                return self.texts(node.body, scope, deeper) + self.texts(node.orelse, scope, deeper)
            case ast.BoolOp():
                return [text for value in node.values for text in self.texts(value, scope, deeper)]
            case ast.List() | ast.Tuple():
                return [text for value in node.elts for text in self.texts(value, scope, deeper)]
            case ast.ListComp() | ast.GeneratorExp():
                return self.texts(node.elt, scope, deeper)
            case ast.Starred():
                return self.texts(node.value, scope, deeper)
            case ast.Name():
                return self._named(node, scope, deeper)
            case ast.Call():
                return self._called(node, scope, deeper)
        return []

    def _named(self, name: ast.Name, scope: ast.AST | None, depth: int) -> list[str]:
        if isinstance(scope, ast.FunctionDef):
            local = [value for target, value in _assignments(ast.walk(scope)) if target == name.id]
            if local or name.id in {argument.arg for argument in ast.walk(scope) if isinstance(argument, ast.arg)}:
                return [text for value in self._reaching(name, local) for text in self.texts(value, scope, depth)]
        value = self._constants.get(name.id)
        return self.texts(value, None, depth) if value is not None else []

    def _reaching(self, use: ast.expr, values: list[ast.expr]) -> list[ast.expr]:
        """Those of the assigned values that a use may have: none from before the last one that is certain."""
        around = set(self._blocks(use))
        line = self._line(use)
        certain = [value for value in values if self._blocks(value)[0] in around and self._line(value) < line]
        first = max(map(self._line, certain), default=0)
        return [value for value in values if first <= self._line(value) < line] or values

    def _blocks(self, node: ast.AST) -> list[tuple[ast.AST, bool]]:
        """The statements around a node, the innermost first, each with whether the node is in its else branch."""
        found = []
        while (parent := self._parent_of.get(node)) is not None:
            if isinstance(parent, ast.stmt | ast.excepthandler | ast.match_case) and isinstance(node, ast.stmt):
                found.append((parent, node in getattr(parent, "orelse", [])))
            node = parent
        return found or [(self._tree, False)]

    def _line(self, node: ast.AST) -> int:
        """The line of the statement around a node: versions of Python count lines within f-strings differently."""
        while not isinstance(node, ast.stmt):
            node = self._parent_of[node]
        return node.lineno

    def _called(self, call: ast.Call, scope: ast.AST | None, depth: int) -> list[str]:
        if isinstance(call.func, ast.Attribute) and call.func.attr == "join" and _is_line_break(call.func.value):
            return self.texts(call.args[0], scope, depth)
        function = self._functions.get(_name(call.func))
        if function is None or not isinstance(call.func, ast.Name):
            return []
        returned = [node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value]
        if _name(call.func) in ENDS:
            return []
        texts = []
        given = {argument.arg: value for argument, value in zip(function.args.args, call.args, strict=False)}
        for value in returned:
            inner = value.args[0] if isinstance(value, ast.Call) and _name(value.func) in ENDS else value
            texts += self._texts_given(
                inner,
                function,
                {name: self.texts(value, scope, depth) or [_placeholder(value)] for name, value in given.items()},
                depth,
            )
        return texts

    def _texts_given(self, node: ast.expr, scope: ast.AST, given: dict[str, list[str]], depth: int) -> list[str]:
        """The texts of an expression of a function that is called with these texts as its arguments."""
        if not isinstance(node, ast.JoinedStr):
            return self.texts(node, scope, depth)
        parts = []
        for value in node.values:
            inner = value.value if isinstance(value, ast.FormattedValue) else None
            known = given.get(inner.id) if isinstance(inner, ast.Name) else None
            parts.append(known or self._part(value, scope, depth))
        return ["".join(chosen) for chosen in itertools.islice(itertools.product(*parts), 8)]

    def _part(self, value: ast.expr, scope: ast.AST | None, depth: int) -> list[str]:
        """The texts of one part of an f-string."""
        if not isinstance(value, ast.FormattedValue):
            return self.texts(value, scope, depth)
        texts = [] if value.format_spec else self.texts(value.value, scope, depth)
        # Nothing stands for an addition such as "; did you mean ...", not for a word.
        if all(text[:1].isalnum() for text in texts if text):
            texts = [text for text in texts if text]
        # A text without a word says less than the name of its variable.
        is_clear = any(map(_has_word, texts)) and len(texts) <= _MOST_TEXTS and max(map(len, texts)) <= _MOST_INSERTED
        if is_clear:
            return list(dict.fromkeys(repr(text) if value.conversion == ord("r") else text for text in texts))
        name = "N" if value.format_spec else _placeholder(value.value)
        return [f"'{name}'" if value.conversion == ord("r") and name.isupper() else name]


def _assignments(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    """Yields (name, value) of each assignment to a name; of `a, b = x, y` both."""
    for node in nodes:
        if not isinstance(node, ast.Assign | ast.AugAssign | ast.NamedExpr):
            continue
        for target in _targets(node):
            if isinstance(target, ast.Name):
                yield target.id, node.value
            elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = zip(target.elts, node.value.elts, strict=False)
                yield from ((name.id, value) for name, value in pairs if isinstance(name, ast.Name))


def _targets(node: ast.Assign | ast.AugAssign | ast.NamedExpr) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def _imported_constants(node: ast.ImportFrom) -> dict[str, ast.expr]:
    base = PACKAGE.parent / (node.module or "").replace(".", "/")
    file = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
    known = dict(_assignments(ast.parse(file.read_text()).body))
    return {name.asname or name.name: known[name.name] for name in node.names if name.name in known}


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _is_problem_name(node: ast.expr) -> bool:
    return bool(_IS_PROBLEM.search(_name(node)))


def _is_problem_function(scope: ast.AST | None) -> bool:
    return isinstance(scope, ast.FunctionDef) and bool(_IS_PROBLEM.search(scope.name))


def _is_line_break(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == "\n"


def _placeholder(node: ast.expr) -> str:
    """The word in capitals for a value that is known only at run time."""
    match node:
        case ast.Call(func=ast.Name(id=name)) if name in _NUMBERS:
            return "N"
        case ast.Call(func=ast.Attribute(attr="join")):
            return "LIST"
        case ast.Call(func=ast.Name(id="did_you_mean")):
            return "[; did you mean NAME?]"
        case ast.Call(func=ast.Name(id="excerpt" | "str" | "repr" | "quote")) if node.args:
            return _placeholder(node.args[0])
        case ast.Call(func=ast.Name(id="getattr")):
            return "VALUE"
        case ast.Call(func=ast.Attribute(value=of, attr=method)) if method in _METHODS:
            return _placeholder(of)
        case ast.Call():
            return _placeholder(node.func)
        case ast.Subscript():
            return _placeholder(node.value)
        case ast.Constant():
            return str(node.value)
        case ast.BinOp(left=ast.Constant(value=int(base)), op=ast.Pow(), right=ast.Constant(value=int(power))):
            return str(base**power)
        case ast.BinOp():
            return _placeholder(node.left)
    word = _name(node).strip("_")
    return _PLAIN.get(word, word.upper() or "VALUE")
