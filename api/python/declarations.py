# SPDX-License-Identifier: Apache-2.0
"""Makes the module `statecache._abi` from the public headers.

    declarations.py INCLUDE_FOLDER OUT.py

Everything that the package knows of the C interface comes from here: the declarations for cffi, the
integer macros, and the defaults of options structs (their _INIT macros). The headers are written so
that a small preprocessor is enough; what it does not understand ends the build. tests/python
compares the result with what a C compiler makes of the same headers.
"""
import ast
import pathlib
import re
import sys

from cffi import FFI

FIRST = ("statecache/statecache.h", "statecache/client.h")
OPTIONS = ("sc_schema_options", "sc_extras_options", "sc_pool_options", "sc_cache_options",
           "sc_tiers_options", "sc_client_options")  # those that the package fills in


class Headers:
    """The public headers as one text of declarations, without comments and preprocessor lines."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.seen = set()
        self.functions = {}  # macros with parameters: name -> (parameters, body)
        self.objects = {}    # macros without: name -> body
        self.lines = []
        for name in FIRST:
            self.read(name)

    def read(self, name):
        if name in self.seen:
            return
        self.seen.add(name)
        text = (self.folder / name).read_text(encoding="utf-8")
        text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S).replace("\\\n", " ")
        dropped = []  # one entry for each open #if: are its lines left out?
        for line in text.split("\n"):
            if not self.conditional(line, dropped) and not any(dropped):
                self.line(line)
        if dropped:
            raise ValueError(f"{name}: an #if is not closed")

    @staticmethod
    def conditional(line, dropped):
        """Handles a line of #if, #else, #endif; False: it is another line."""
        match = re.match(r"\s*#\s*(ifdef|ifndef|if|else|endif)\b\s*(.*)", line)
        if not match:
            return False
        word, rest = match.group(1), match.group(2).strip()
        if word == "endif":
            dropped.pop()
        elif word == "else":
            dropped[-1] = not dropped[-1]
        elif word == "ifndef" and rest.startswith("STATECACHE_"):
            dropped.append(False)
        elif (word, rest) in (("ifdef", "__cplusplus"), ("if", "defined(_WIN32)")):
            dropped.append(True)
        else:
            raise ValueError(f"not understood: {line}")
        return True

    def line(self, line):
        match = re.match(r"\s*#\s*(\w+)\s*(.*)", line)
        if not match:
            self.lines.append(self.expand(line))
            return
        word, rest = match.groups()
        if word == "include" and rest.startswith('"'):
            self.read(rest.strip('" '))
        elif word == "define":
            name, parameters, body = re.match(r"(\w+)(\([^)]*\))?\s*(.*)", rest).groups()
            if parameters is None:
                self.objects[name] = body.strip()
            else:
                names = [p.strip() for p in parameters.strip("()").split(",")]
                self.functions[name] = (names, body.strip())
        elif word == "undef":
            self.functions.pop(rest.strip(), None)
        elif word != "include":
            raise ValueError(f"not understood: {line}")

    def expand(self, text):
        """Replaces uses of macros with parameters until there are none."""
        for name, (parameters, body) in self.functions.items():
            match = re.search(rf"\b{name}\s*\(", text)
            if match:
                arguments, end = split_arguments(text, match.end())
                if len(arguments) != len(parameters):
                    raise ValueError(f"{name}: {len(arguments)} arguments in {text}")
                for parameter, argument in zip(parameters, arguments):
                    body = re.sub(rf"\b{parameter}\b", lambda _, a=argument: a, body)
                return self.expand(text[:match.start()] + body + text[end:])
        return text

    def declarations(self):
        """What FFI.cdef takes: no SC_API, and each typedef once."""
        text = re.sub(r"\bSC_(TIERS_|CLIENT_)?API\b", "", "\n".join(self.lines))
        once = set()

        def keep_first(match):
            first = match.group() not in once
            once.add(match.group())
            return match.group() if first else ""
        text = re.sub(r"typedef struct (\w+) \1;", keep_first, text)
        macros = "".join(f"#define {name} {body}\n" for name, body in self.objects.items()
                         if re.fullmatch(r"\d+", body))
        return macros + re.sub(r"\n\s*\n+", "\n", text)


def split_arguments(text, start):
    """The arguments of a macro's use whose parenthesis opens before `start`, and where it ends."""
    arguments, depth, current, quoted = [], 0, start, False
    for at in range(start, len(text)):
        letter = text[at]
        if letter == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif letter in "({":
            depth += 1
        elif letter in ")}" and depth > 0:
            depth -= 1
        elif letter == ")" or letter == "," and depth == 0:
            arguments.append(text[current:at].strip())
            current = at + 1
            if letter == ")":
                return arguments, current
    raise ValueError(f"a macro's arguments do not end: {text}")


def defaults(ffi, headers):
    """{struct: {member: value}} of the _INIT macros: what is not zero, struct_size left out."""
    inits = {}
    enums = {}
    for name in ffi.list_types()[0]:
        ctype = ffi.typeof(name)
        if ctype.kind == "enum":
            enums.update(ctype.relements)
    for struct in OPTIONS:
        macro = struct.upper() + "_INIT"
        body = headers.objects[macro]
        words = re.sub(r"sizeof\(\w+\)|\bNULL\b|\bfalse\b", "0", body)
        words = re.sub(r"\btrue\b", "1", re.sub(r"(\d)[uU]\b", r"\1", words))
        words = re.sub(r"\b[A-Z]\w+\b", lambda m: str(constant(headers, enums, m.group())), words)
        values = evaluate(ast.parse(words.translate(str.maketrans("{}", "[]")), mode="eval").body)
        members = ffi.typeof(struct).fields
        if len(values) != len(members):
            raise ValueError(f"{macro}: {len(values)} values for {len(members)} members")
        given = {}
        for (member, _), value in zip(members, values):
            if isinstance(value, list) and any(value):
                raise ValueError(f"{macro}: {member} has members that are not zero")
            if value and not isinstance(value, list):
                given[member] = value
        inits[struct] = given
    return inits


def constant(headers, enums, name):
    if name in enums:
        return enums[name]
    for match in re.finditer(rf"\b{name}\s*=\s*(-?\d+)", "\n".join(headers.lines)):
        return int(match.group(1))
    raise ValueError(f"{name} is not a constant of the headers")


def evaluate(node):
    """A nested list of integers; `1 << 20` is the only expression that the macros use."""
    if isinstance(node, ast.List):
        return [evaluate(item) for item in node.elts]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.LShift):
        return evaluate(node.left) << evaluate(node.right)
    return ast.literal_eval(node)


def write(include, out):
    """Writes the module; returns the declarations."""
    headers = Headers(include)
    ffi = FFI()
    text = headers.declarations()
    ffi.cdef(text)
    ffi.set_source("statecache._abi", None)
    ffi.emit_python_code(str(out))
    version = ".".join(headers.objects[f"SC_VERSION_{part}"] for part in
                       ("MAJOR", "MINOR", "PATCH"))
    with open(out, "a", encoding="ascii") as file:
        file.write(f"\nVERSION = {version!r}\nINITS = {defaults(ffi, headers)!r}\n")
    return text


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    write(sys.argv[1], sys.argv[2])
