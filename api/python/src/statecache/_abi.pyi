# SPDX-License-Identifier: Apache-2.0
# Made from the headers when the wheel is built: declarations.py.
from typing import Any

ffi: Any
VERSION: str
INITS: dict[str, dict[str, int]]
