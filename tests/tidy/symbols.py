# SPDX-License-Identifier: Apache-2.0
"""symbols.py ROOT LIBRARY ARCHIVE NM [MARK MAP]: four views of the public functions agree.

  declared   SC_API (MARK) in api/include/statecache/*.h
  mapped     the global list of api/libstatecache.map (MAP)
  exported   dynamic symbols that LIBRARY defines
  archived   global symbols of ARCHIVE, the static library, which shares the program's name space

Each declared function that takes arguments must be called with bad ones: a call of it must stand in
a function or Check test of tests/ whose name says so ("refuses", "bad_args", ...: BAD_NAME); if
it returns sc_status that function, or a helper of the file that it calls, must also name the
SC_ERR_ code that it expects.
"""
import re
import subprocess
import sys

import rules

BAD_NAME = re.compile(r"refuse|reject|bad_|null|unknown|invalid|stale|overflow")

MACRO = re.compile(r"^#define (\w+)\(((?:.*\\\n)*.*)", re.M)


def declared_symbols(tree, mark="SC_API"):
    """{name: (returns sc_status, takes arguments)} of the public headers."""
    found = {}
    pattern = re.compile(r"\b" + mark + r"\s+([^;(]*?)\b(sc_\w+)\s*(?:\(([^;]*)\))?\s*;", re.S)
    for path, text in tree.files.items():
        if path.startswith("api/include/statecache/") and path.endswith(".h"):
            for result, name, arguments in pattern.findall(rules.strip_c(text)):
                found[name] = ("sc_status" in result and "*" not in result,
                               (arguments or "").strip() not in ("", "void"))
    return found


def mapped_symbols(tree, name="api/libstatecache.map"):
    text = rules.strip_c(tree.files[name])
    section = re.search(r"global:(.*?)local:", text, re.S)
    return set(re.findall(r"(\w+)\s*;", section.group(1))) if section else set()


def exported_symbols(library, nm):
    out = subprocess.run([nm, "-D", "--defined-only", library], check=True, text=True,
                         stdout=subprocess.PIPE).stdout
    symbols = set()
    for line in out.splitlines():
        kind, name = line.split()[-2:]
        if kind != "A":  # the version itself, STATECACHE_0
            symbols.add(name.split("@")[0])
    return symbols


def archived_symbols(archive, nm):
    out = subprocess.run([nm, "-g", "--defined-only", archive], check=True, text=True,
                         stdout=subprocess.PIPE).stdout
    return {line.split()[2] for line in out.splitlines() if len(line.split()) == 3}


def refused_symbols(tree):
    """{name: True if some refusing test that calls it also names an SC_ERR_ code}."""
    found = {}
    for path, text in tree.files.items():
        if not path.startswith("tests/") or not path.endswith((".c", ".h")):
            continue
        functions = list(rules.c_functions(text))
        # Helpers of the same file that compare with a code: `invalid(sc_cache_room(NULL, &room))`.
        helpers = {name for name, _, body in functions if "SC_ERR_" in body}
        helpers |= {name for name, body in MACRO.findall(text) if "SC_ERR_" in body}
        for name, _, body in functions:
            if BAD_NAME.search(name):
                words = set(re.findall(r"\b(\w+)\s*\(", body))
                names_code = "SC_ERR_" in body or bool(words & helpers)
                for called in words:
                    found[called] = found.get(called, False) or names_code
    return found


def problems(declared, mapped, exported, archived, refused):
    """The comparison itself, apart from where its views come from, so that it can be tested."""
    for name in sorted(set(declared) - mapped):
        yield f"{name} is declared SC_API but not in api/libstatecache.map"
    for name in sorted(mapped - set(declared)):
        yield f"{name} is in api/libstatecache.map but no public header declares it SC_API"
    for name in sorted(mapped - exported):
        yield f"{name} is in api/libstatecache.map but the library does not define it"
    for name in sorted(exported - mapped):
        yield f"{name} is exported but not in api/libstatecache.map"
    for name in sorted(archived ^ mapped):
        yield f"{name} is in one of api/libstatecache.map and the static library, not in both"
    for name, (returns_status, takes_arguments) in sorted(declared.items()):
        if takes_arguments and name not in refused:
            yield f"{name} has no bad-argument test (CONTRIBUTING.md, \"Bad input\")"
        elif takes_arguments and returns_status and not refused[name]:
            yield f"{name}: its bad-argument test names no SC_ERR_ code"


def selftest():
    """Each kind of problem must be reported, and a tree in order must not be."""
    header = "/* SC_API int sc_no(int); */ SC_API sc_status sc_a(const x *a,\n int b);\n" \
             "SC_API const char *sc_b(void);\n"
    test = "START_TEST(a__refuses_null)\n{\n    ck_assert(sc_a(NULL, 0) == SC_ERR_INVALID);\n}\n" \
           "END_TEST\n"
    weak = test.replace("SC_ERR_INVALID", "1")
    other = test.replace("refuses_null", "accepts_all")
    helper = "static void invalid(sc_status s)\n{\n    ck_assert(s == SC_ERR_INVALID);\n}\n\n" + \
        weak.replace("ck_assert", "invalid")
    macro = "#define invalid(s) \\\n    ck_assert(s == SC_ERR_INVALID)\n" + \
        weak.replace("ck_assert", "invalid")
    comment = test.replace("ck_assert", "/* sc_a(0) SC_ERR_ */ x").replace("sc_a(NULL, 0) ==", "")

    both = {"sc_a", "sc_b"}

    def run(text=test, mapped="sc_a; sc_b;", exported=both, archived=None):
        tree = rules.Tree({"api/include/statecache/x.h": header, "tests/unit/t.c": text,
                           "api/libstatecache.map": f"V {{\nglobal:\n {mapped}\nlocal:\n *;\n}};"})
        return list(problems(declared_symbols(tree), mapped_symbols(tree), exported,
                             exported if archived is None else archived, refused_symbols(tree)))
    cases = [
        (run(), 0), (run(mapped="sc_a;"), 3), (run(mapped="sc_a; sc_b; sc_c;"), 3),
        (run(exported={"sc_a"}, archived=both), 1), (run(exported=both | {"x"}, archived=both), 1),
        (run(archived={"sc_a"}), 1), (run(archived=both | {"rx"}), 1),
        (run(other), 1), (run(weak), 1), (run(comment), 1), (run(helper), 0), (run(macro), 0),
    ]
    return [f"selftest case {number}: {got}" for number, (got, want) in enumerate(cases)
            if len(got) != want]


def main():
    root, library, archive, nm = sys.argv[1:5]
    mark, name = sys.argv[5:] or ("SC_API", "api/libstatecache.map")
    tree = rules.Tree.read(root)
    declared = declared_symbols(tree, mark)
    if not declared:
        sys.exit("no public function is declared under " + root)
    bad = selftest() + list(problems(declared, mapped_symbols(tree, name),
                                     exported_symbols(library, nm), archived_symbols(archive, nm),
                                     refused_symbols(tree)))
    for problem in bad:
        print("NOT OK", problem)
    print(f"{max(0, len(declared) - len(bad))} passed, {len(bad)} failed, 0 skipped")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
