"""Notes which modules of the package run code, in every process that starts with this folder on its path.

Each function of the package is compiled with a first statement that notes its module: a profile function would slow all
else down, and reaches no thread that runs already. What is called counts only while the file ``$CROSSED/on`` is there;
each process answers its appearance with ``PID.ready`` and its removal with ``PID.json``, the names of the modules.
"""  # noqa: INP001 - a folder for PYTHONPATH, not a package

from __future__ import annotations

import ast
import builtins
import json
import os
import threading
import time
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

FOLDER = Path(os.environ["CROSSED"])
PACKAGE = "vllm_mmout"
NOTE = "__crossed__"
usual_code = SourceFileLoader.get_code
crossed: set[str] = set()


class Noting(ast.NodeTransformer):
    """Puts the note at the start of each function.

    Args:
        module: what is noted.

    """

    def __init__(self, module: str) -> None:
        self._module = module

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        """One function, and those in it."""
        self.generic_visit(node)
        first = int(ast.get_docstring(node, clean=False) is not None)
        call = ast.Call(ast.Name(NOTE, ast.Load()), [ast.Constant(self._module)], [])
        node.body.insert(first, ast.Expr(call))
        return node

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815


def noting_code(loader: SourceFileLoader, fullname: str) -> CodeType | None:
    """The code of a module; that of the package with notes."""
    if fullname.partition(".")[0] != PACKAGE:
        return usual_code(loader, fullname)
    path = loader.get_filename(fullname)
    tree = Noting(fullname.partition(".")[2] or PACKAGE).visit(ast.parse(loader.get_data(path)))
    return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


def watch() -> None:
    """Answer the file's appearance and removal."""
    flag = FOLDER / "on"
    while True:
        while not flag.exists():
            time.sleep(0.02)
        crossed.clear()
        (FOLDER / f"{os.getpid()}.ready").touch()
        while flag.exists():
            time.sleep(0.02)
        unfinished = FOLDER / f"{os.getpid()}.part"
        unfinished.write_text(json.dumps(sorted(crossed.copy())))
        unfinished.rename(FOLDER / f"{os.getpid()}.json")


def start() -> None:
    """Watch in a thread."""
    threading.Thread(target=watch, name="watch", daemon=True).start()


setattr(builtins, NOTE, crossed.add)
SourceFileLoader.get_code = noting_code  # type: ignore[method-assign]
start()
os.register_at_fork(after_in_child=start)
