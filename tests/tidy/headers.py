# SPDX-License-Identifier: Apache-2.0
"""headers.py ROOT BUILD CC CXX: compiles headers alone, and includes that must not compile.

Public headers: each alone, and twice, as C11 and as C++17, with pedantic warnings as errors; and
every macro that stands for a value, used from both.
Internal headers: each alone, with the flags of its own layer.
Layers: a file of a layer that includes a header of one it must not see fails for want of the file;
the same file with a header of one that it may see compiles.
"""
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

# Layer -> what it may see besides itself and the public headers (design: includes point down only).
SEES = {
    "api/base": (),
    "kernels": ("api/base",),
    "pool": ("api/base", "kernels"),
    "snapshot": ("api/base", "kernels", "pool"),
    "snapshot/tier": ("api/base", "kernels", "pool", "snapshot"),
    "radix": ("api/base",),
    "api/engine": ("api/base", "kernels", "pool", "snapshot", "radix"),
}
# base/map.h is parameterised by the table's heap.
PARAMETERS = "#define SC_MAP_HEAP ((struct sc_heap *)0)\n"


class Compiler:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    def run(self, command, text, suffix):
        """Compiles `text`; returns the compiler's message, or None when it compiled."""
        source = self.folder / ("probe" + suffix)
        source.write_text(text)
        done = subprocess.run([*command, "-fsyntax-only", str(source)], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return None if done.returncode == 0 else done.stdout or "failed without a message"


def layer_commands(root, build):
    """{layer: compiler and include flags of one of its sources}, from the build's own record."""
    commands = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["file"])
        if not path.is_relative_to(root):
            continue
        inside = str(path.relative_to(root))
        words = shlex.split(entry["command"])
        owners = [layer for layer in SEES if inside.startswith(layer + "/")]
        for layer in sorted(owners, key=len)[-1:]:  # the deepest: snapshot/tier before snapshot
            if layer not in commands:
                commands[layer] = [words[0]] + [word for number, word in enumerate(words)
                                                if word.startswith(("-I", "-D", "-std="))
                                                or words[number - 1] == "-isystem"
                                                or word == "-isystem"]
    return commands


def internal_headers(root, layer):
    folder = root / layer / "include"
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.h"))


def value_macros(root, names):
    """(type, macro) of each initializer of a struct and of each null handle."""
    found = []
    for name in names:
        text = (root / "api/include" / name).read_text()
        for macro in sorted(set(re.findall(r"#define (SC_[A-Z_]+_(?:INIT|NULL))\s", text))):
            found.append((macro.lower().removesuffix("_init").removesuffix("_null"), macro))
    return found


def check_public(root, compiler, cc, cxx, expect):
    include = "-I" + str(root / "api/include")
    strict = ["-Wall", "-Wextra", "-Wpedantic", "-Wundef", "-Werror", include]
    names = internal_headers(root, "api")
    expect(bool(names), "there are public headers", "none found")
    for name in names:
        twice = f'#include "{name}"\n#include "{name}"\n'
        message = compiler.run([cc, "-std=c11", *strict], twice + "int probe;\n", ".c")
        expect(message is None, f"{name} alone as C11", message)
        message = compiler.run([cxx, "-std=c++17", *strict], twice, ".cpp")
        expect(message is None, f"{name} alone as C++17", message)
    values = value_macros(root, names)
    expect(len(values) > 3, "there are macros that stand for a value", str(values))
    for kind, macro in values:
        text = "".join(f'#include "{name}"\n' for name in names)
        text += f"{kind} probe(void);\n{kind} probe(void)\n{{\n    {kind} it = {macro};\n"
        text += "    return it;\n}\n"
        if not macro.endswith("_INIT"): # an expression, too
            text += f"{kind} other(void);\n{kind} other(void) {{ return {macro}; }}\n"
        message = compiler.run([cc, "-std=c11", *strict], text, ".c")
        expect(message is None, f"{macro} in C11", message)
        message = compiler.run([cxx, "-std=c++17", *strict], text, ".cpp")
        expect(message is None, f"{macro} in C++17", message)
    message = compiler.run([cc, "-std=c11", *strict], "sc_status probe;\n", ".c")
    expect(message is not None, "a header that lacks its include is noticed", "it compiled")


def check_layers(root, commands, compiler, expect):
    for layer, sees in SEES.items():
        command = commands.get(layer)
        expect(command is not None, f"{layer} is built", "no source of it is compiled")
        if command is None:
            continue
        for name in internal_headers(root, layer):
            text = PARAMETERS + f'#include "{name}"\nint probe;\n'
            message = compiler.run(command, text, ".c")
            expect(message is None, f"{name} alone", message)
        for other in SEES:
            for name in internal_headers(root, other)[:1] if other != layer else ():
                text = PARAMETERS + f'#include "{name}"\nint probe;\n'
                message = compiler.run(command, text, ".c")
                if other in sees:
                    expect(message is None, f"{layer} may include {name}", message)
                else:
                    expect(message is not None and f"{name}: No such file" in message,
                           f"{layer} must not include {name}", message or "it compiled")
        for outside in ("tests/support/fail_alloc.h", "support/fail_alloc.h"):
            message = compiler.run(command, f'#include "{outside}"\n', ".c")
            expect(message is not None, f"{layer} must not include {outside}", "it compiled")


def main():
    root, build = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
    cc, cxx = sys.argv[3:]
    counts = {True: 0, False: 0}

    def expect(good, name, message):
        counts[good] += 1
        if not good:
            print("NOT OK", name)
            print("\n".join("    " + line for line in message.splitlines()[:12]))

    with tempfile.TemporaryDirectory() as folder:
        compiler = Compiler(folder)
        check_public(root, compiler, cc, cxx, expect)
        check_layers(root, layer_commands(root, build), compiler, expect)
    print(f"{counts[True]} passed, {counts[False]} failed, 0 skipped")
    return 1 if counts[False] else 0


if __name__ == "__main__":
    sys.exit(main())
