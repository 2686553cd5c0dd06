# SPDX-License-Identifier: Apache-2.0
"""House rules that can be read off the text of the tree.

Each rule is a function from a Tree to problems ("path:line: text"), registered in RULES. Its
counterexample lives in selftest.py, which fails when a rule has none or lets it pass.
"""
import ast
import pathlib
import posixpath
import re
import subprocess
import textwrap

COLUMNS_MAX = 100
FUNCTION_LINES_MAX = 70
LAYERS = ("api/base", "kernels", "pool", "snapshot", "radix", "api/engine")
CODE = (".c", ".h", ".cu", ".cuh", ".cpp", ".py", ".cmake", ".sh")
RULES = {}


class Tree:
    """The files of the repository: path relative to its root -> text."""

    def __init__(self, files):
        self.files = files

    @staticmethod
    def read(root):
        """Every file that git tracks or would track; without git, every file outside build/."""
        root = pathlib.Path(root)
        try:
            listed = subprocess.run(
                ["git", "-C", str(root), "ls-files", "-co", "--exclude-standard", "-z"],
                check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
            names = sorted(set(filter(None, listed.decode().split("\0"))))
        except (OSError, subprocess.CalledProcessError):
            names = sorted(str(path.relative_to(root)) for path in root.rglob("*")
                           if path.is_file()
                           and path.relative_to(root).parts[0] not in ("build", ".git", ".venv"))
        files = {}
        for name in names:
            try:
                files[name] = (root / name).read_text(encoding="utf-8")
            except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
                pass  # binary, or deleted and not yet committed
        return Tree(files)

    def code(self):
        """(path, text) of files in a programming language."""
        for path, text in self.files.items():
            if is_code(path, text):
                yield path, text

    def c(self):
        for path, text in self.files.items():
            if path.endswith((".c", ".h", ".cu", ".cuh")):
                yield path, text


def is_code(path, text):
    return path.endswith(CODE) or path.endswith("CMakeLists.txt") or text.startswith("#!")


def is_library(path):
    return path.startswith(tuple(layer + "/" for layer in LAYERS))


def rule(function):
    RULES[function.__name__] = function
    return function


def strip_c(text):
    """C text with comments and literals blanked, of the same length and lines."""
    def blank(match):
        return re.sub(r"[^\n]", " ", match.group())
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', blank, text,
                  flags=re.S)


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def c_functions(text):
    """(name, first line, body) of each function; `body` is the stripped text between its braces.

    House style puts both braces of a function in the first column, so no parser is needed. Check's
    START_TEST(name) { ... } END_TEST counts as a function called `name`.
    """
    lines = strip_c(text).split("\n")
    start = None
    for index, line in enumerate(lines):
        if start is None and (line.rstrip() == "{" or re.match(r"[a-zA-Z_].*\)\s*\{\s*$", line)):
            start = index
        elif start is not None and re.match(r"\}\s*(END_TEST)?\s*$", line):
            yield name_of_function(lines, start), start + 1, "\n".join(lines[start + 1:index])
            start = None
        elif start is not None and line.startswith("}"):
            start = None  # the end of a struct, an enum or an initializer


def name_of_function(lines, start):
    """The name in the declaration that ends at line index `start`."""
    first = start
    while first > 0 and lines[first - 1].strip() and not lines[first - 1].rstrip().endswith(
            (";", "}")) and not lines[first - 1].startswith("#"):
        first -= 1
    head = " ".join(lines[first:start + 1])
    test = re.search(r"\bSTART_TEST\s*\(\s*(\w+)", head)
    name = test or re.search(r"(\w+)\s*\(", head)
    return name.group(1) if name else "?"


@rule
def columns(tree):
    """No line of code is longer than 100 columns."""
    for path, text in tree.code():
        for number, line in enumerate(text.split("\n"), 1):
            if len(line) > COLUMNS_MAX:
                yield f"{path}:{number}: {len(line)} columns, {COLUMNS_MAX} are allowed"


@rule
def white_space(tree):
    """No tabs, no trailing blanks, one newline at the end."""
    for path, text in tree.code():
        for number, line in enumerate(text.split("\n"), 1):
            if "\t" in line:
                yield f"{path}:{number}: a tab"
            if line != line.rstrip():
                yield f"{path}:{number}: blanks at the end of the line"
        if text and (not text.endswith("\n") or text.endswith("\n\n")):
            yield f"{path}:{text.count(chr(10))}: the file must end in one newline"


@rule
def spdx(tree):
    """The licence identifier stands in the first line, or below #!."""
    for path, text in tree.code():
        lines = text.split("\n")
        line = lines[1] if lines[0].startswith("#!") and len(lines) > 1 else lines[0]
        if "SPDX-License-Identifier: Apache-2.0" not in line:
            yield f"{path}:1: no SPDX-License-Identifier line"


BANNED = {
    "strcpy": "unbounded", "strcat": "unbounded", "sprintf": "unbounded", "vsprintf": "unbounded",
    "gets": "unbounded", "strncpy": "does not terminate", "strtok": "keeps hidden state",
    "atoi": "cannot report an error", "atof": "cannot report an error", "alloca": "unbounded stack",
}
BANNED_OUTSIDE_BASE = {
    "rand": "base/prng.h", "srand": "base/prng.h", "random": "base/prng.h",
    "drand48": "base/prng.h", "time": "base/clock.h", "gettimeofday": "base/clock.h",
    "clock_gettime": "base/clock.h", "clock": "base/clock.h",
}
BANNED_IN_LIBRARY = {
    "malloc": "base/heap.h", "calloc": "base/heap.h", "realloc": "base/heap.h",
    "free": "base/heap.h", "aligned_alloc": "base/heap.h", "posix_memalign": "base/heap.h",
    "strdup": "base/heap.h", "abort": "base/sc_assert.h", "exit": "an error status",
    "assert": "base/sc_assert.h",
}
PRINTING = ("printf", "fprintf", "vprintf", "vfprintf", "puts", "fputs", "putchar", "perror",
            "dprintf")


def banned_reason(path, name):
    """Why `path` must not call `name`, or None."""
    if name in BANNED:
        return BANNED[name]
    if path.startswith("api/base/"):
        # An assertion that fails says so before it aborts; nothing else in the library prints.
        if name in PRINTING and not path.endswith("/sc_assert.c"):
            return "the library never prints"
        return None
    if name in BANNED_OUTSIDE_BASE:
        return "use " + BANNED_OUTSIDE_BASE[name]
    if is_library(path) and name in BANNED_IN_LIBRARY:
        return "use " + BANNED_IN_LIBRARY[name]
    if is_library(path) and name in PRINTING:
        return "the library never prints"
    return None


@rule
def banned_calls(tree):
    """Calls that are unsafe, or that belong to api/base alone."""
    # A member (`allocator->free(...)`) and a declaration of one (`(*free)(`) are other functions.
    call = re.compile(r"(?<![\w.>*])(\w+)\s*\(")
    for path, text in tree.c():
        clean = strip_c(text)
        for match in call.finditer(clean):
            reason = banned_reason(path, match.group(1))
            if reason:
                yield f"{path}:{line_of(clean, match.start())}: {match.group(1)}(): {reason}"


@rule
def includes(tree):
    """No `../` in includes; CUDA headers in kernels/ and the GPU's benchmark and tests alone."""
    include = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.M)
    for path, text in tree.c():
        for match in include.finditer(text):
            name, line = match.group(2), line_of(text, match.start())
            if "../" in name:
                yield f"{path}:{line}: include of {name}: no ../"
            if name.startswith("cuda") and not path.startswith(
                    ("kernels/", "bench/gpu/", "tests/gpu/")):
                yield f"{path}:{line}: include of {name}: only kernels/ sees CUDA"


@rule
def header_names(tree):
    """Two headers never share a name, so that an include says which one it means."""
    seen = {}
    for path in tree.files:
        if path.endswith((".h", ".cuh")):
            name = path.rsplit("/", 1)[-1]
            if name in seen:
                yield f"{path}:1: there is already a header {name}: {seen[name]}"
            seen.setdefault(name, path)


@rule
def readmes(tree):
    """Each folder with code has a README.md of a page that says something."""
    folders = set()
    for path, text in tree.code():
        parts = path.split("/")[:-1]
        if parts and "include" not in parts and not path.startswith("tests/install/consumer/"):
            folders.add("/".join(parts))
    for folder in sorted(folders):
        if folder.startswith("."):
            continue
        readme = tree.files.get(folder + "/README.md")
        if readme is None:
            yield f"{folder}/README.md:1: is missing"
        elif len(readme.strip()) < 150 or readme.count("\n") > 120:
            yield f"{folder}/README.md:1: {readme.count(chr(10))} lines: one page is wanted"


@rule
def function_lines(tree):
    """A function has at most 70 lines; older ones are listed in long_functions.txt."""
    listed = {}
    for line in tree.files.get("tests/tidy/long_functions.txt", "").split("\n"):
        if line.strip() and not line.startswith("#"):
            path, name, lines = line.split()
            listed[path, name] = int(lines)
    for path, name, first, lines in all_functions(tree):
        limit = listed.pop((path, name), None)
        if limit is None and lines > FUNCTION_LINES_MAX:
            yield f"{path}:{first}: {name} has {lines} lines, {FUNCTION_LINES_MAX} are allowed"
        elif limit is not None and lines <= FUNCTION_LINES_MAX:
            yield f"tests/tidy/long_functions.txt:1: {name} is short now: take it off the list"
        elif limit is not None and lines != limit:
            yield f"{path}:{first}: {name} has {lines} lines, the list says {limit}: only shrink"
    for path, name in listed:
        yield f"tests/tidy/long_functions.txt:1: {path} {name} is gone: take it off the list"


def all_functions(tree):
    """(path, name, first line, lines) of every function in C and Python."""
    for path, text in tree.c():
        for name, first, body in c_functions(text):
            yield path, name, first, body.count("\n") + 1
    for path, text in tree.files.items():
        if path.endswith(".py"):
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    yield path, node.name, node.lineno, node.end_lineno - node.lineno


# Written in pieces, so that this file does not name what it looks for.
MACHINE_PATHS = re.compile("|".join(
    r"(?<![\w.\]}/-])/" + name + r"(?=[/\"'\s),:;]|$)"
    for name in ("wor" "k", "roo" "t", "Use" "rs"))
    + "|/hom" r"e/\w|/tmp/s" r"c/", re.M)


@rule
def machine_paths(tree):
    """Nothing names a folder of the machine that it was written on."""
    for path, text in tree.files.items():
        if path == "LICENSE":
            continue
        for match in MACHINE_PATHS.finditer(text):
            yield f"{path}:{line_of(text, match.start())}: a path of one machine: {match.group()}"


@rule
def options_size(tree):
    """A public options struct begins with struct_size and has an initializer."""
    for path, text in tree.files.items():
        if not path.startswith("api/include/statecache/") or not path.endswith(".h"):
            continue
        clean = strip_c(text)
        for match in re.finditer(r"typedef struct (sc_\w+_options) \{\s*([^;]*);", clean):
            name, first = match.groups()
            if first.strip() != "size_t struct_size":
                yield f"{path}:{line_of(clean, match.start())}: {name} must begin with struct_size"
            if f"{name.upper()}_INIT" not in clean:
                yield f"{path}:{line_of(clean, match.start())}: {name.upper()}_INIT is missing"


def sample_region(text, region):
    """The lines between two `/* [region] */` or `# [region]` markers, dedented; else None."""
    mark = r"\[" + re.escape(region) + r"\]"
    parts = re.split(r"^[ \t]*(?:/\* " + mark + r" \*/|# " + mark + r")\n", text, flags=re.M)
    return textwrap.dedent(parts[1]).strip("\n") if len(parts) == 3 else None


@rule
def samples(tree):
    """C and CMake code in documents is the text of a file that CI compiles.

    Above the block stands `<!-- sample: FILE [REGION] -->`, FILE relative to the document.
    """
    block = re.compile(r"(?:^<!-- sample: (\S+) \[(\w+)\] -->\n+)?^```(?:c|cmake)\n(.*?)^```",
                       re.M | re.S)
    for path, text in tree.files.items():
        if not path.endswith(".md"):
            continue
        for match in block.finditer(text):
            file, region, shown = match.groups()
            where = f"{path}:{line_of(text, match.start())}"
            if file is None:
                yield f"{where}: code without a line that names its sample"
                continue
            source = posixpath.normpath(posixpath.join(posixpath.dirname(path), file))
            wanted = sample_region(tree.files.get(source, ""), region)
            if wanted != shown.strip("\n"):
                yield f"{where}: not the text of {source} [{region}]"


@rule
def links(tree):
    """Relative links in documents lead to something."""
    folders = {posixpath.dirname(name) for name in tree.files}
    for path, text in tree.files.items():
        if not path.endswith(".md"):
            continue
        for match in re.finditer(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(path), match.group(1)))
            if target not in tree.files and target not in folders:
                yield f"{path}:{line_of(text, match.start())}: no {match.group(1)}"


REPORTS = "docs/field-reports.md"
REPORTS_EXCLUDED_MAX = 12


@rule
def field_reports(tree):
    """docs/field-reports.md and the tests named after its entries are the same set.

    A row ends in its tests (`report_17__...`), in "waits for issue N", or in "excluded: " with the
    test that makes the fault impossible.
    """
    tests, rows, excluded = {}, {}, 0
    for path, text in tree.c():
        for match in re.finditer(r"^START_TEST\((\w+)\)", text, re.M):
            tests[match.group(1)] = f"{path}:{line_of(text, match.start())}"
    text = tree.files.get(REPORTS, "")
    for match in re.finditer(r"^\| *\[?B(\d+).*\|([^|\n]*)\|$", text, re.M):
        number, cell = int(match.group(1)), match.group(2)
        where = f"{REPORTS}:{line_of(text, match.start())}"
        if number in rows:
            yield f"{where}: there is already a row {number}"
        rows[number] = named = re.findall(r"`(\w+__\w+)`", cell)
        excluded += "excluded: " in cell
        if not named and not re.search(r"waits for issue \d", cell):
            yield f"{where}: neither a test nor an issue that {number} waits for"
        for name in named:
            of = re.match(r"report_(\d+)__", name)
            if name not in tests:
                yield f"{where}: there is no test {name}"
            if (not of or int(of.group(1)) != number) and "excluded: " not in cell:
                yield f"{where}: {name} is not named after {number}"
    if excluded > REPORTS_EXCLUDED_MAX:
        yield f"{REPORTS}:1: {excluded} exclusions, {REPORTS_EXCLUDED_MAX} are allowed"
    for name, where in tests.items():
        of = re.match(r"report_(\d+)__", name)
        if of and name not in rows.get(int(of.group(1)), []):
            yield f"{where}: {name} is not in {REPORTS}"


def problems_of(tree):
    """Runs all rules; returns {rule name: [problem]}."""
    return {name: list(function(tree)) for name, function in RULES.items()}
