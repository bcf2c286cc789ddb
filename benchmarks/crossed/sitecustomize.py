"""Recorder of the package's modules that run code, in each process that starts with this folder on its path.

Each function of the package is compiled with a first statement that records its module. A profile function would slow
everything down, and would miss threads that already run. Calls count only while the file ``$CROSSED/on`` exists. When
it appears, each process creates ``PID.ready``; when it is deleted, each process writes the modules to ``PID.json``.
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
    """A transformer that inserts the recording call at the start of each function.

    Args:
        module: The name of the module, as it is recorded.

    """

    def __init__(self, module: str) -> None:
        self._module = module

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        """Insert the call into a function and into the functions nested in it."""
        self.generic_visit(node)
        first = int(ast.get_docstring(node, clean=False) is not None)
        call = ast.Call(ast.Name(NOTE, ast.Load()), [ast.Constant(self._module)], [])
        node.body.insert(first, ast.Expr(call))
        return node

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815


def noting_code(loader: SourceFileLoader, fullname: str) -> CodeType | None:
    """Return the code of a module, with recording calls if the module belongs to the package."""
    if fullname.partition(".")[0] != PACKAGE:
        return usual_code(loader, fullname)
    path = loader.get_filename(fullname)
    tree = Noting(fullname.partition(".")[2] or PACKAGE).visit(ast.parse(loader.get_data(path)))
    return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


def watch() -> None:
    """Start recording when the file ``on`` appears, and write the module names when it is deleted."""
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
    """Run `watch` in a thread."""
    threading.Thread(target=watch, name="watch", daemon=True).start()


setattr(builtins, NOTE, crossed.add)
SourceFileLoader.get_code = noting_code  # type: ignore[method-assign]
start()
os.register_at_fork(after_in_child=start)
