# SPDX-License-Identifier: Apache-2.0
"""Loads the installed libstatecache.so into a plain Python, as an engine would.

A library linked with Debian's jemalloc cannot be loaded this way ("cannot allocate memory in static
TLS block"); this one must be.
"""
import ctypes
import sys

lib = ctypes.CDLL(sys.argv[1])
lib.sc_version.restype = ctypes.c_char_p
version = lib.sc_version().decode()
assert version.count(".") == 2, version
print("loaded statecache", version)
