# SPDX-License-Identifier: Apache-2.0
"""Shows that each rule of rules.py can fail: a counterexample that it must report, and beside it
the nearest right thing, which it must let pass. A rule without a counterexample is a
failure itself.
"""
import sys

import rules

C = "/* SPDX-License-Identifier: Apache-2.0 */\n"
README = "# Folder\n\n" + "What it owns, what it must not know, what to read first. " * 4 + "\n"

LIST = "tests/tidy/long_functions.txt"
REGION = "{\n    /* [r] */\n    int a;\n    /* [r] */\n}\n"


def function(name, lines):
    return f"static int {name}(int a,\n    int b)\n{{\n" + "    a += b;\n" * lines + "}\n"


REPORTS = "docs/field-reports.md"


def row(number, cell):
    return f"| [B{number:02}](https://a.b/c) | what | A | {cell} |\n"


def report(*names):
    return C + "".join(f"START_TEST({name})\n{{\n}}\nEND_TEST\n" for name in names)


# rule -> (files that break it, files that keep it)
CASES = {
    "columns": [
        ({"pool/a.c": C + "/* " + "x" * 95 + " */\n"},
         {"pool/a.c": C + "/* " + "x" * 94 + " */\n"}),
        ({"dev": "#!/bin/sh\n# " + "x" * 99 + "\n"}, {"notes.md": "x" * 200}),
    ],
    "white_space": [
        ({"pool/a.c": C + "int a; \n"}, {"pool/a.c": C + "int a;\n"}),
        ({"pool/a.c": C + "\tint a;\n"}, {"pool/a.c": C + "    int a;\n"}),
        ({"pool/a.c": C + "int a;"}, {"pool/a.c": C + "int a;\n"}),
    ],
    "spdx": [
        ({"pool/a.c": "int a;\n"}, {"pool/a.c": C + "int a;\n"}),
        ({"dev": "#!/bin/bash\necho\n"},
         {"dev": "#!/bin/bash\n# SPDX-License-Identifier: Apache-2.0\necho\n"}),
    ],
    "banned_calls": [
        ({"tests/unit/a.c": C + "x = strcpy(a, b);\n"},
         {"tests/unit/a.c": C + "/* strcpy(a, b) */ x = \"strcpy(a)\";\n"}),
        ({"pool/a.c": C + "x = malloc(3);\n"}, {"tests/unit/a.c": C + "x = malloc(3);\n"}),
        ({"pool/a.c": C + "free(x);\n"}, {"pool/a.c": C + "heap->free(x); sc_pool_free(x);\n"}),
        ({"radix/a.c": C + "printf(x);\n"}, {"bench/a.c": C + "printf(x);\n"}),
        ({"api/base/log.c": C + "fputs(x, f);\n"}, {"api/base/sc_assert.c": C + "fputs(x, f);\n"}),
        ({"bench/a.c": C + "srand(time(NULL));\n"}, {"api/base/clock.c": C + "time(NULL);\n"}),
        ({"kernels/a.c": C + "p = alloca(n);\n"}, {"kernels/a.c": C + "p = sc_alloca_not(n);\n"}),
    ],
    "includes": [
        ({"pool/a.c": C + '#include "../radix/tree.h"\n'},
         {"pool/a.c": C + '#include "pool/x.h"\n'}),
        ({"pool/a.c": C + "#include <cuda_runtime.h>\n"},
         {"kernels/a.c": C + "#include <cuda_runtime.h>\n"}),
    ],
    "header_names": [
        ({"pool/a.h": C, "radix/include/radix/a.h": C}, {"pool/a.h": C, "radix/b.h": C}),
    ],
    "readmes": [
        ({"pool/a.c": C}, {"pool/a.c": C, "pool/README.md": README}),
        ({"pool/a.c": C, "pool/README.md": "# Pool\n"},
         {"pool/include/pool/a.h": C, "pool/README.md": README}),
        ({"pool/a.c": C, "pool/README.md": README + "more\n" * 130},
         {"pool/a.c": C, "pool/README.md": README + "more\n" * 60}),
    ],
    "function_lines": [
        ({"pool/a.c": C + function("big", 71)}, {"pool/a.c": C + function("big", 70)}),
        ({"pool/a.c": C + "START_TEST(big)\n{\n" + "    ;\n" * 71 + "}\nEND_TEST\n"},
         {"pool/a.c": C + "static int big[] = {\n" + "    1,\n" * 99 + "};\n"}),
        ({"tests/a.py": "def big():\n" + "    print()\n" * 71}, {"tests/a.py": "print()\n" * 99}),
        ({"pool/a.c": C + function("big", 81), LIST: "pool/a.c big 80\n"},
         {"pool/a.c": C + function("big", 80), LIST: "pool/a.c big 80\n"}),
        ({"pool/a.c": C + function("big", 79), LIST: "pool/a.c big 80\n"},
         {}),
        ({"pool/a.c": C + function("big", 9), LIST: "pool/a.c big 80\n"},
         {}),
        ({LIST: "pool/a.c gone 80\n"}, {}),
    ],
    "machine_paths": [
        ({"a.c": 'x = "/hom' 'e/somebody/x";\n'}, {"a.c": 'x = "/usr/bin/python3";\n'}),
        ({"README.md": "/".join(("see ", "work", "main\n"))},
         {"README.md": "/".join(("see framework/main and $x", "work", "y\n"))}),
        ({"a.sh": "cd /roo" "t\n"}, {"a.sh": "cd $root/x\n"}),
    ],
    "samples": [
        ({"a/b.md": "<!-- sample: x.c [r] -->\n```c\nint b;\n```\n", "a/x.c": REGION},
         {"a/b.md": "<!-- sample: x.c [r] -->\n```c\nint a;\n```\n", "a/x.c": REGION}),
        ({"a/b.md": "```c\nint a;\n```\n"}, {"a/b.md": "```sh\nint a;\n```\n"}),
        ({"b.md": "```cmake\nproject(b)\n```\n"},
         {"b.md": "<!-- sample: x.txt [r] -->\n```cmake\nproject(b)\n```\n",
          "x.txt": "# [r]\nproject(b)\n# [r]\n"}),
        ({"a/b.md": "<!-- sample: y.c [r] -->\n```c\nint a;\n```\n", "a/x.c": REGION},
         {"b.md": "<!-- sample: a/x.c [r] -->\n\n```c\nint a;\n```\n", "a/x.c": REGION}),
    ],
    "links": [
        ({"docs/a.md": "[x](b.md)"},
         {"docs/a.md": "[x](../b.md#c) [y](https://a.b/c)", "b.md": ""}),
    ],
    "field_reports": [
        ({REPORTS: row(7, "`report_7__x`"), "tests/a.c": C},
         {REPORTS: row(7, "`report_07__x`"), "tests/a.c": report("report_07__x")}),
        ({REPORTS: "", "tests/a.c": report("report_7__x")},
         {REPORTS: "", "tests/a.c": report("reported__x")}),
        ({REPORTS: row(7, "`report_7__x`"), "tests/a.c": report("report_7__x", "report_7__y")},
         {REPORTS: row(7, "`report_7__x`<br>`report_7__y`"),
          "tests/a.c": report("report_7__x", "report_7__y")}),
        ({REPORTS: row(8, "`report_7__x`"), "tests/a.c": report("report_7__x")},
         {REPORTS: row(8, "excluded: `pool__x`"), "tests/a.c": report("pool__x")}),
        ({REPORTS: row(8, "")}, {REPORTS: row(8, "waits for issue 7")}),
        ({REPORTS: row(8, "waits for issue 7") + row(8, "waits for issue 7")}, {}),
        ({REPORTS: "".join(row(n, "excluded: `pool__x`") for n in range(13)),
          "tests/a.c": report("pool__x")},
         {REPORTS: "".join(row(n, "excluded: `pool__x`") for n in range(12)),
          "tests/a.c": report("pool__x")}),
    ],
    "options_size": [
        ({"api/include/statecache/x.h":
          C + "typedef struct sc_x_options {\n    int a;\n} sc_x_options;\n"
          "#define SC_X_OPTIONS_INIT {0}\n"},
         {"api/include/statecache/x.h":
          C + "typedef struct sc_x_options {\n    size_t struct_size;\n} sc_x_options;\n"
          "#define SC_X_OPTIONS_INIT {0}\n"}),
        ({"api/include/statecache/x.h":
          C + "typedef struct sc_x_options {\n    size_t struct_size;\n} sc_x_options;\n"}, {}),
    ],
}


def main():
    passed = failed = 0

    def expect(good, text):
        nonlocal passed, failed
        passed += good
        failed += not good
        if not good:
            print("NOT OK", text)

    for name in rules.RULES:
        expect(name in CASES, f"rule {name} has no counterexample")
    for name, cases in CASES.items():
        for number, (bad, good) in enumerate(cases):
            found = list(rules.RULES[name](rules.Tree(bad)))
            expect(bool(found), f"{name}, case {number}: the counterexample was not reported")
            found = list(rules.RULES[name](rules.Tree(good)))
            expect(not found, f"{name}, case {number}: reported without cause: {found}")
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
