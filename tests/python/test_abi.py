# SPDX-License-Identifier: Apache-2.0
"""The package and the headers cannot drift apart: what was made of them equals what a C compiler
makes of them, and every name that Python repeats is compared."""
import os
import pathlib
import re
import subprocess

import pytest

import statecache as sc
from statecache import _abi, cache, lease, pool, schema, step, tiers

ROOT = pathlib.Path(__file__).resolve().parents[2]
INCLUDE = ROOT / "api" / "include"


def typedefs(kind):
    names = [name for name in _abi.ffi.list_types()[0] if name.startswith("sc_")]
    return [name for name in names if _abi.ffi.typeof(name).kind == kind and not is_opaque(name)]


def is_opaque(name):
    """Asking cffi for the members of such a struct ends the process."""
    try:
        return _abi.ffi.sizeof(name) == 0
    except (ValueError, _abi.ffi.error):
        return True


def enumerators():
    """(name, value) of all enums, those without a name too."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in INCLUDE.glob("statecache/*.h"))
    names = set(re.findall(r"\bSC_[A-Z0-9_]+\b", text))
    return [(name, getattr(sc.lib, name)) for name in sorted(names)
            if isinstance(getattr(sc.lib, name, None), int)]


def test_layout__is_that_of_a_c_compiler(tmp_path):
    lines = [(f"sizeof({name})", _abi.ffi.sizeof(name))
             for name in typedefs("struct") + typedefs("enum")]
    for name in typedefs("struct"):
        for member, field in _abi.ffi.typeof(name).fields:
            lines.append((f"offsetof({name}, {member})", field.offset))
            lines.append((f"sizeof((({name} *)0)->{member})", _abi.ffi.sizeof(field.type)))
    lines += enumerators()
    for struct, members in _abi.INITS.items():
        lines += [(f"(({struct}){struct.upper()}_INIT).{member}", value)
                  for member, value in members.items()]
    assert len(lines) > 1000, "most of the interface is missing"
    source = "#include <statecache/client.h>\n#include <statecache/statecache.h>\n"
    source += "#include <stdio.h>\nint main(void) {\n" + "".join(
        f'printf("%lld\\n", (long long)({expression}));\n' for expression, _ in lines) + "}\n"
    (tmp_path / "layout.c").write_text(source, encoding="ascii")
    compiler = os.environ.get("STATECACHE_TEST_CC", "cc")
    subprocess.run([compiler, "-std=c11", f"-I{INCLUDE}", tmp_path / "layout.c", "-o",
                    tmp_path / "layout"], check=True)
    said = subprocess.run([tmp_path / "layout"], check=True, capture_output=True, text=True)
    wrong = [f"{expression}: C {real}, Python {ours}" for (expression, ours), real in
             zip(lines, said.stdout.split()) if int(ours) != int(real)]
    assert not wrong


def test_defaults__no_other_member_of_an_init_macro_is_set(tmp_path):
    """Zeroing the members that INITS has, and struct_size, leaves nothing."""
    source = "#include <statecache/client.h>\n#include <statecache/statecache.h>\n"
    source += "#include <string.h>\nint main(void) {\n"
    for struct, members in _abi.INITS.items():
        source += (f"{{ {struct} zero, o = {struct.upper()}_INIT; memset(&zero, 0, sizeof zero);\n"
                   f"if (o.struct_size != sizeof o) return 1;\n")
        for member in ("struct_size", *members):
            source += f"memset(&o.{member}, 0, sizeof o.{member});\n"
        for member, _ in _abi.ffi.typeof(struct).fields:
            source += f"if (memcmp(&o.{member}, &zero.{member}, sizeof o.{member})) return 2;\n"
        source += "}\n"
    (tmp_path / "init.c").write_text(source + "return 0; }\n", encoding="ascii")
    compiler = os.environ.get("STATECACHE_TEST_CC", "cc")
    subprocess.run([compiler, "-std=c11", f"-I{INCLUDE}", tmp_path / "init.c", "-o",
                    tmp_path / "init"], check=True)
    assert subprocess.run([tmp_path / "init"], check=False).returncode == 0


def test_library__every_function_of_the_headers_is_in_it():
    text = "\n".join(path.read_text(encoding="utf-8") for path in INCLUDE.glob("statecache/*.h")
                     if path.name in {p.name for p in headers()})
    names = set(re.findall(r"^SC_(?:TIERS_)?API[^;]*?\b(sc_\w+)\(", text, re.M))
    assert len(names) > 100 and not [name for name in names if not hasattr(sc.lib, name)]


def headers():
    """The headers that statecache.h includes, and those that these do."""
    seen, left = set(), ["statecache/statecache.h"]
    while left:
        path = INCLUDE / left.pop()
        if path not in seen:
            seen.add(path)
            left += re.findall(r'#include "(statecache/\w+\.h)"', path.read_text(encoding="utf-8"))
    return seen


@pytest.mark.parametrize("prefix, ours, ctype", [
    ("SC_", {("" if item is sc.Status.OK else "ERR_") + item.name: item.value
             for item in sc.Status}, "sc_status"),
    ("SC_REASON_", {item.name: item.value for item in sc.Reason}, "sc_reason"),
    ("SC_LEASE_", {item.name: item.value for item in sc.LeaseState}, "sc_lease_state"),
    ("SC_DTYPE_", schema.DTYPES, "sc_dtype"),
    ("SC_PART_", schema.KINDS, "sc_part_kind"),
    ("SC_SPLIT_", schema.SPLITS, "sc_split"),
    ("SC_LAYOUT_", pool.LAYOUTS, "sc_layout"),
    ("SC_OWNER_", pool.OWNERS, "sc_owner"),
    ("SC_TIER_WRITE_", tiers.WRITES, "sc_tier_write"),
    ("SC_DIFFERS_", {name: at for at, name in enumerate(("not", *sc.DIFFERS[1:]))}, "sc_differs"),
])
def test_names__are_those_of_the_enum(prefix, ours, ctype):
    there = {name: value for name, value in _abi.ffi.typeof(ctype).relements.items()
             if not name.endswith("_COUNT")}
    assert {prefix + name.upper().replace("-", "_"): value for name, value in ours.items()} == there


def test_names__flags_and_errors():
    for prefix, module, names in (
            ("SC_", cache, [name for name in vars(cache) if name.startswith("SAVE_")]),
            ("SC_REQUEST_", sc, ["EXTERNAL", "COPY", "AGAIN"]),
            ("SC_HINT_", sc, ["CONTINUES", "OVER"])):
        assert len(names) >= 2
        for name in names:
            assert getattr(module, name) == getattr(sc.lib, prefix + name), name
    classes = {kind.status for kind in sc.Error.__subclasses__()}
    assert classes == set(sc.Status) - {sc.Status.OK}


def test_members__info_options_and_block_name_all_that_there_are():
    ffi = _abi.ffi
    infos = {name for name, _ in ffi.typeof("sc_lease_info").fields}
    ours = set(lease.LeaseInfo.__dataclass_fields__)
    assert infos - ours == {"hints", "resume_hints", "reserved"} and ours <= infos
    block = {name[3:] for name, _ in ffi.typeof("sc_batch").fields if name.startswith("at_")}
    assert block == {*step.BY_ROW, *step.BY_SAVE, "query_start_loc", "parent", "row_count",
                     "save_count", "token_count"}
    options = {name for name, _ in ffi.typeof("sc_cache_options").fields}
    known = {*cache._NUMBERS, *cache._SWITCHES, *cache._REALS, *cache._TEXTS, "pool", "extras",
             "tiers", "page_tokens", "without_kv", "kv_mover"}
    assert options - known == {"struct_size", "allocator", "record", "record_ctx"}
    assert known <= options


def test_version__is_that_of_the_library_and_another_is_refused(tmp_path):
    assert sc.__version__ == sc.ffi.string(sc.lib.sc_version()).decode()
    (tmp_path / "old.c").write_text('const char *sc_version(void) { return "0.0.9"; }\n',
                                    encoding="ascii")
    library = tmp_path / "libold.so"
    subprocess.run([os.environ.get("STATECACHE_TEST_CC", "cc"), "-shared", "-fPIC",
                    tmp_path / "old.c", "-o", library], check=True)
    (tmp_path / "other.c").write_text("int other;\n", encoding="ascii")
    other = tmp_path / "libother.so"
    subprocess.run([os.environ.get("STATECACHE_TEST_CC", "cc"), "-shared", "-fPIC",
                    tmp_path / "other.c", "-o", other], check=True)
    for path, text in ((library, "is statecache 0.0.9"), (other, "is not statecache"),
                       (tmp_path / "none.so", "cannot be loaded")):
        done = subprocess.run([os.sys.executable, "-c", "import statecache"], check=False,
                              env={**os.environ, "STATECACHE_LIBRARY": str(path)},
                              capture_output=True, text=True)
        assert done.returncode != 0 and text in done.stderr, done.stderr
