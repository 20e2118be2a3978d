"""Runs a page's Python, piece by piece, in one namespace.

Each line of the standard input is a piece, as JSON: page, line, text, folder, doctest. Each line of the standard
output says how it went: error (null, or its words), line, and the module that is not installed, if that was why.
"""

import contextlib
import doctest
import io
import json
import os
import sys
import traceback

NAMES = {"__name__": "__main__"}
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def run(piece):
    page, line, text = piece["page"], piece["line"], piece["text"]
    os.chdir(piece["folder"])
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            if not piece["doctest"]:
                exec(compile("\n" * (line - 1) + text, page, "exec"), NAMES)
                return {"error": None}
            test = doctest.DocTestParser().get_doctest(text, {}, page, page, line - 1)
            test.globs = NAMES
            runner = doctest.DocTestRunner(verbose=False, optionflags=FLAGS)
            words = []
            failed = runner.run(test, out=words.append, clear_globs=False).failed
            return {"error": "".join(words) if failed else None, "line": line}
    except SyntaxError as error:
        return {"error": str(error), "line": error.lineno}
    except BaseException as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == page]
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        words = traceback.format_exception_only(type(error), error)
        return {"error": "".join(words).strip(), "line": lines[-1] if lines else line, "missing": missing}


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # What else is printed goes to the errors.
    for row in sys.stdin:
        answers.write(json.dumps(run(json.loads(row))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
