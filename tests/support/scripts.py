"""Scripts that tests run in interpreters of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys


def run_script(*arguments, cwd=None, **environment):
    """Run a script, which must end well; what it printed is in ``stdout`` and ``stderr``.

    Its engines have processes of their own, whatever a fixture has set in ``VLLM_ENABLE_V1_MULTIPROCESSING``.
    """
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return done


def answer_of(*arguments, **environment):
    """The JSON that a script prints in its one line "answer: ..."."""
    lines = run_script(*arguments, **environment).stdout.splitlines()
    (answer,) = [line for line in lines if line.startswith("answer: ")]
    return json.loads(answer.removeprefix("answer: "))
