"""Identifies the code that a program is traced from, so that a kept program is found without tracing it again.

JAX's keys are checksums of the traced program, and tracing takes most of a start with kept programs. A key that is
known earlier must cover everything that tracing reads: the shapes of the arguments, the options, JAX's settings, and
the code.
"""

# pyright: reportAttributeAccessIssue=false
# (pyright does not know the options of jax.config)

import ast
import builtins
import contextlib
import dataclasses
import functools
import hashlib
import os
import platform
import sys
import sysconfig
from pathlib import Path
from typing import Any

import jax

import jaxpose
from jaxpose import config
from jaxpose.config.command_line import EXPERIMENT

# The packages whose code runs while a program is traced and compiled.
_TRACED = ("jax", "jaxlib", "flax", "optax", "numpy", "ml_dtypes", "opt_einsum")
# Folders of installed packages.
_INSTALLED = ("/site-packages/", "/dist-packages/")


class _UnknownCode(Exception):
    """A file of the code is absent, or has changed since this process may have read it; or other code has run."""


def code_identity() -> str:
    """Returns a checksum of the code of this process and of JAX's settings; "" if the code is not known for sure.

    It covers the content of jaxpose's files and of a config file, and the size and time of the loaded files of the
    packages above: by these, Python itself decides whether its bytecode is up to date. Code of the user that does more
    than set options could replace anything, by values that no file shows, so with it the code is not known.
    """
    try:
        _refuse_other_code()
        files = [_own_code(), _loaded_code()]
    except (OSError, _UnknownCode):
        return ""
    settings = sorted(jax.config.values.items())
    return hashlib.sha256(repr([platform.python_version(), settings, *files]).encode()).hexdigest()


def xla_options() -> list[str | None]:
    """Returns the options of XLA's compilers."""
    return [xla_flags(), os.environ.get("LIBTPU_INIT_ARGS")]


def xla_flags() -> str:
    """Returns the options of XLA's compiler; XLA_FLAGS has them, or names a file that has them."""
    text = os.environ.get("XLA_FLAGS", "").strip()
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return Path(text).read_text() if text and not text.startswith("-") else text
    return text


def _refuse_other_code() -> None:
    """Raises _UnknownCode unless a verb runs here, without a config file or with one that only sets options."""
    main, experiment = sys.modules["__main__"], sys.modules.get(EXPERIMENT)
    spec, script = getattr(main, "__spec__", None), os.path.join(sysconfig.get_path("scripts"), "jaxpose")
    is_verb = spec is not None and spec.name.partition(".")[0] == "jaxpose"
    if not is_verb and getattr(main, "__file__", None) != script:
        raise _UnknownCode(main)
    if experiment and not _sets_only_options(Path(str(experiment.__file__))):
        raise _UnknownCode(experiment)


# Decides whether a config file only sets options: all that is not listed here may run other code.

_SYNTAX = (
    ast.Module, ast.Import, ast.ImportFrom, ast.alias, ast.FunctionDef, ast.arguments, ast.arg, ast.Return, ast.Pass,
    ast.Assign, ast.AnnAssign, ast.AugAssign, ast.If, ast.For, ast.Raise, ast.Expr, ast.Call, ast.keyword, ast.Name,
    ast.Attribute, ast.Constant, ast.Tuple, ast.List, ast.Dict, ast.Set, ast.Subscript, ast.Slice, ast.Starred,
    ast.JoinedStr, ast.FormattedValue, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.ListComp,
    ast.GeneratorExp, ast.comprehension, ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
)  # fmt: skip
_BUILTINS = {
    "__file__", "ValueError", "abs", "bool", "dict", "enumerate", "float", "int", "len", "list", "max", "min", "print",
    "range", "round", "set", "sorted", "str", "sum", "tuple", "zip",
}  # fmt: skip
_IMPORTS: dict[tuple[str, str], Any] = {
    **{("jaxpose.config", name): getattr(config, name) for name in config.__all__},
    ("pathlib", "Path"): Path,
    ("dataclasses", "replace"): dataclasses.replace,
    ("__future__", "annotations"): None,
}
# Of paths. Others reach the code that made a value, such as gi_frame of a generator, or methods, which may read files.
_ATTRIBUTES = {"name", "parent", "parents", "parts", "stem", "suffix"} | {
    field.name
    for section in map(config.__dict__.get, config.__all__)
    if dataclasses.is_dataclass(section)
    for field in dataclasses.fields(section)
}
# Arguments of the functions above, none of which is called, as key would be.
_KEYWORDS = {"base", "default", "end", "ndigits", "reverse", "sep", "start", "strict"}


def _sets_only_options(file: Path) -> bool:
    """Returns whether a config file reaches nothing but its own values, and new sections of the config.

    It then changes no code, and its text, which `code_identity` covers, decides what it does.
    """
    try:
        tree = ast.parse(file.read_bytes())
        _OptionsVisitor(tree).visit(tree)
    except Exception:  # _UnknownCode; or the file has been removed or half-saved, or is nested too deeply
        return False
    return True


class _OptionsVisitor(ast.NodeVisitor):
    """Visits a config file; raises _UnknownCode where it does more than set options."""

    def __init__(self, tree: ast.Module):
        nodes = list(ast.walk(tree))
        # {a name, or the name of a module with an attribute: its value}
        self._imported: dict[str, Any] = {}
        self._modules: set[str] = set()
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._import(node)
        functions = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
        variables = {node.arg for node in nodes if isinstance(node, ast.arg)}
        variables |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        for name in functions | variables:
            self._refuse_known(name)
        # A variable may hold a method, which could write files.
        called = {name for name, value in self._imported.items() if callable(value)}
        self._called = (functions - variables) | _BUILTINS | called

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        above = node.module or "" if isinstance(node, ast.ImportFrom) else ""
        if getattr(node, "level", 0):
            raise _UnknownCode(above)
        for found in node.names:
            name = found.asname or found.name
            self._refuse_known(name)
            if f"{above}.{found.name}".removeprefix(".") == "jaxpose.config" and "." not in name:
                self._modules.add(name)
                self._imported |= {f"{name}.{known}": getattr(config, known) for known in config.__all__}
                continue
            # The sections' own files offer the same ones.
            above = "jaxpose.config" if above.startswith("jaxpose.config.") else above
            if (above, found.name) not in _IMPORTS:
                raise _UnknownCode(found.name)
            self._imported[name] = _IMPORTS[above, found.name]

    def _refuse_known(self, name: str) -> None:
        """Raises _UnknownCode for a name that has a value: which of the two holds may depend on more than the text."""
        if name in self._imported or name in self._modules or hasattr(builtins, name) or name.startswith("__"):
            raise _UnknownCode(name)

    def visit(self, node: ast.AST) -> None:
        if not isinstance(node, _SYNTAX):
            raise _UnknownCode(node)
        super().visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.decorator_list:
            raise _UnknownCode(node)
        self._visit_annotation(node.returns)
        self.visit(node.args)
        for statement in node.body:
            self.visit(statement)

    def visit_arg(self, node: ast.arg) -> None:
        self._visit_annotation(node.annotation)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._visit_annotation(node.annotation)
        for part in (node.target, node.value):
            if part:
                self.visit(part)

    def _visit_annotation(self, node: ast.expr | None) -> None:
        if node and ast.unparse(node) not in self._imported:
            self.visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = ast.unparse(node.func)
        if name not in self._called:
            raise _UnknownCode(node.func)
        if name in _BUILTINS - {"dict"} and any(keyword.arg not in _KEYWORDS for keyword in node.keywords):
            raise _UnknownCode(node.keywords)
        for part in (*node.args, *node.keywords):
            self.visit(part)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if not self._is_imported_text(node):
            if node.attr not in _ATTRIBUTES:
                raise _UnknownCode(node.attr)
            self.visit(node.value)

    def visit_Name(self, node: ast.Name) -> None:
        name = node.id
        if not self._is_imported_text(node) and (
            name in self._modules or (name not in _BUILTINS and (hasattr(builtins, name) or name.startswith("__")))
        ):
            raise _UnknownCode(name)

    def _is_imported_text(self, node: ast.Attribute | ast.Name) -> bool:
        """Returns whether an expression is an imported text; a class or a table could be changed by another name."""
        text = ast.unparse(node)
        if text in self._imported and not isinstance(self._imported[text], str):
            raise _UnknownCode(text)
        return text in self._imported and isinstance(node.ctx, ast.Load)


@functools.cache
def _own_code() -> list[tuple[str, str]]:
    """Returns name and checksum of jaxpose's files."""
    folder = Path(jaxpose.__file__).parent
    files = sorted(folder.rglob("*.py"))
    if not files:
        raise _UnknownCode(folder)
    return [(file.relative_to(folder).as_posix(), _content(file)) for file in files]


def _loaded_code() -> list[tuple[str, Any]]:
    """Returns name and identity of the other loaded files, except the standard library and packages without a part."""
    own, standard = (folder + os.sep for folder in (os.path.dirname(jaxpose.__file__), sysconfig.get_path("stdlib")))
    found: list[tuple[str, Any]] = []
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not file or file.startswith(own):
            continue
        if any(folder in file for folder in _INSTALLED):
            if name.partition(".")[0] in _TRACED:
                status = _status(file)
                found.append((name, (status.st_size, status.st_mtime_ns)))
        elif not file.startswith(standard):
            found.append((name, _content(Path(file))))
    return found


def _content(file: Path) -> str:
    _status(str(file))
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _status(file: str) -> os.stat_result:
    status = os.stat(file)
    # A file that replaced another one may have an earlier time of its content.
    if max(status.st_mtime_ns, status.st_ctime_ns) > jaxpose.IMPORTED_AT_NS:
        raise _UnknownCode(file)
    return status
