"""The rules of the code that can be read off it: who imports whom, sizes, waits, names, threads.

Everything here reads the syntax trees of the package once; nothing of the package is imported.
"""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "hermes_bridges"
BRIDGES = ("coms", "donut", "telegram", "wishee")
HARD_LIMIT = 400  # lines of a module
TOP_LEVEL = {
    ".ci",
    ".git",
    ".gitignore",
    "CHANGES.md",
    "LICENSE",
    "README.md",
    "bench",
    "bin",
    "contrib",
    "docs",
    "hermes_bridges",
    "pyproject.toml",
    "setup.cfg",
    "tests",
}
FORBIDDEN_NAMES = {"common", "helper", "helpers", "manager", "misc", "util", "utils"}
PURE = {
    "cleaning",
    "clusters",
    "envelope",
    "fences",
    "frames",
    "jsdates",
    "jsrules",
    "keys",
    "markers",
    "media",
    "outcome",
    "peertext",
    "protocol",
    "questions",
    "recall",
    "telegramtext",
    "text",
    "transcript",
}
DATA_MODULES = {
    "__future__",
    "bisect",
    "calendar",
    "collections",
    "dataclasses",
    "datetime",
    "email",
    "enum",
    "functools",
    "hashlib",
    "itertools",
    "json",
    "math",
    "re",
    "string",
    "struct",
    "textwrap",
    "types",
    "typing",
    "unicodedata",
}
OWN_PLACE = {  # a library, and the only modules that may import it
    "requests": {"core/httpclient.py"},
    "sqlite3": {"donut/store.py", "wishee/history.py"},
    "urllib3": {"core/httpclient.py", "core/wire.py"},
    "websocket": {"core/connection.py", "core/dial.py"},
}
CTL_MAY_IMPORT = {"__version__", "coms", "core", "ctl", "donut", "errors", "telegram"}
NEEDS_PACKAGES = ("connection", "dial", "httpclient", "stream", "wire")  # of core
HERMES_MODULES = {"agent", "gateway", "hermes_cli", "hermes_state", "plugins", "tools"}
HERMES_PLACES = {"wishee/compat.py", "wishee/adapter.py"}
WALL_CLOCK = {  # modules that stamp what people and peers read, or keep a deadline on disk
    "coms/book.py",
    "coms/client/scope.py",
    "coms/desk.py",
    "coms/judge.py",
    "coms/records.py",
    "coms/registry.py",
    "coms/service.py",
    "core/eventlog.py",
    "core/status.py",
    "core/stream.py",
    "ctl/bridges.py",
    "ctl/examination/host.py",
    "ctl/health.py",
    "donut/hermes_api.py",
    "donut/poster.py",
    "donut/store.py",
    "donut/turns.py",
    "donut/typing_signal.py",
    "donut/upkeep.py",
    "wishee/connector.py",
    "wishee/history.py",
    "wishee/link.py",
    "wishee/outbox.py",
    "wishee/turns.py",
}
ENTRY = {"wishee": "adapter.py"}  # where a bridge is put together, if not in service.py
BOUNDARIES = {  # module:function that may catch Exception; each one logs a traceback, but
    "core/chats.py:_run",
    "core/logs.py:_message",  # for this, which is the log
    "core/service.py:_close",
    "core/service.py:_run",
    "core/service.py:_serve",
    "core/service.py:ask_stop",
    "wishee/connector.py:_mark",
    "wishee/disk.py:_do",
    "wishee/link.py:_run",
    "wishee/link.py:_tell",
    "wishee/requests.py:_answer",
    "wishee/turns.py:_turn",
}
PUBLIC_ALL_THE_SAME = {"os._exit", "_asdict", "_fields", "_replace"}  # of os and of named tuples
WRITERS = {"core/files.py", "standins/hermes_command.py"}  # may open a file for writing


def sources() -> list[Path]:
    return sorted((ROOT / PACKAGE).rglob("*.py"))


def name(path: Path) -> str:
    return path.relative_to(ROOT / PACKAGE).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(tree(path)))


def dotted(node: ast.AST) -> str:
    """``a.b.c`` of such an expression, or what there is of it."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, by its whole name, wherever the import stands."""
    package = [PACKAGE, *path.relative_to(ROOT / PACKAGE).parent.parts]
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from package import module` may name a module: both readings are looked at.
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def own_parts(imported: str) -> list[str]:
    """The parts below our package of an import of ours, else nothing."""
    parts = imported.split(".")
    return parts[1:] if parts[0] == PACKAGE else []


def found_in_all(kind: type[ast.AST]) -> Iterator[tuple[Path, ast.AST]]:
    for path in sources():
        for node in nodes(path):
            if isinstance(node, kind):
                yield path, node


def calls(*wanted: str) -> Iterator[tuple[Path, ast.Call]]:
    for path, node in found_in_all(ast.Call):
        assert isinstance(node, ast.Call)
        if dotted(node.func) in wanted:
            yield path, node


def at(path: Path, node: ast.AST) -> str:
    return f"{name(path)}:{getattr(node, 'lineno', 0)}"


def test_there_is_something_to_read():
    assert len(sources()) > 10


def test_the_top_level_holds_what_the_layout_lists_and_no_more():
    tracked = {entry.name for entry in ROOT.iterdir()} - ignored()
    assert tracked <= TOP_LEVEL


def ignored() -> set[str]:
    patterns = (ROOT / ".gitignore").read_text().split()
    return {
        entry.name
        for entry in ROOT.iterdir()
        if any(entry.match(pattern.rstrip("/")) for pattern in patterns)
    }


def test_modules_have_a_size_and_a_name_of_their_own():
    long = {name(path): n for path in sources() if (n := lines(path)) > HARD_LIMIT}
    assert not long
    vague = [name(path) for path in sources() if FORBIDDEN_NAMES & set(path.stem.split("_"))]
    assert not vague


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_a_main_module_only_calls():
    for path in sources():
        if path.name == "__main__.py":
            assert len(tree(path).body) <= 5, name(path)


@pytest.mark.parametrize("part", ["core", "standins", *BRIDGES])
def test_who_may_import_whom(part):
    allowed = {"errors", "core", "__version__", part}
    wrong = [
        f"{name(path)} imports {imported}"
        for path in sources()
        if name(path).startswith(f"{part}/")
        for imported in imports(path)
        if own_parts(imported) and own_parts(imported)[0] not in allowed
    ]
    assert not wrong


def test_the_operator_command_reads_files_and_talks_to_no_bridge():
    # What a bridge's own modules do when they are asked to check is their affair.
    banned = [["socket"], ["asyncio"], *(["core", one] for one in NEEDS_PACKAGES)]
    for path in sources():
        if name(path).startswith("ctl/"):
            for imported in imports(path):
                parts = own_parts(imported)
                assert (parts or imported.split("."))[:2] not in banned, f"{name(path)}: {imported}"
                assert not parts or parts[0] in CTL_MAY_IMPORT, f"{name(path)}: {imported}"


def test_nobody_imports_the_operator_command_a_main_module_or_a_stand_in():
    wrong = [
        f"{name(path)} imports {imported}"
        for path in sources()
        for imported in imports(path)
        if {"ctl", "__main__"} & set(own_parts(imported))
        or ("standins" in own_parts(imported) and not name(path).startswith("standins/"))
    ]
    own = ("ctl/", "__main__.py imports hermes_bridges.ctl")
    assert not [line for line in wrong if not line.startswith(own)]


def test_each_foreign_library_has_its_place():
    ours = {*sys.stdlib_module_names, PACKAGE}
    for path in sources():
        for imported in imports(path):
            top = imported.split(".")[0]
            if top in OWN_PLACE:
                assert name(path) in OWN_PLACE[top], f"{name(path)} imports {top}"
            elif top in HERMES_MODULES:
                assert name(path) in HERMES_PLACES, f"{name(path)} imports {top}"
            else:
                assert top in ours, f"{name(path)} imports {top}"


def test_coms_starts_without_the_foreign_libraries():
    for path in sources():
        if name(path).startswith("coms/"):
            for imported in imports(path):
                assert own_parts(imported)[:2] not in [["core", one] for one in NEEDS_PACKAGES]


def pure_sources() -> list[Path]:
    """The pure modules, and those of ours that they are made of."""
    pending = [path for path in sources() if path.stem in PURE]
    reached: dict[Path, None] = {}
    while pending:
        path = pending.pop()
        reached[path] = None
        for imported in imports(path):
            module = (ROOT / PACKAGE).joinpath(*own_parts(imported)).with_suffix(".py")
            if own_parts(imported) and module.is_file() and module not in reached:
                pending.append(module)
    return sorted(reached)


def test_pure_modules_import_data_modules_only():
    assert pure_sources()
    for path in pure_sources():
        for imported in imports(path):
            top = imported.split(".")[0]
            assert top == PACKAGE or top in DATA_MODULES, f"{name(path)} imports {imported}"


def test_nothing_sleeps_and_nothing_is_asynchronous():
    assert not [at(path, node) for path, node in calls("time.sleep", "sleep")]
    for path in sources():
        imported = set(imports(path))
        assert "time.sleep" not in imported, name(path)
        if not name(path).startswith("wishee/"):
            assert "asyncio" not in imported, name(path)


def test_the_wall_clock_is_read_only_for_stamps():
    clocks = ("time.time", "time.time_ns", "datetime.now", "datetime.datetime.now")
    for path, node in found_in_all(ast.Attribute):
        if dotted(node) in clocks and not name(path).startswith("standins/"):
            assert name(path) in WALL_CLOCK, at(path, node)


def enclosing_function(path: Path, wanted: ast.AST) -> str:
    innermost = ""
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and any(
            child is wanted for child in ast.walk(node)
        ):
            innermost = node.name
    return innermost


def test_exceptions_are_caught_by_name():
    seen = set()
    for path, node in found_in_all(ast.ExceptHandler):
        assert isinstance(node, ast.ExceptHandler)
        assert node.type is not None, f"bare except at {at(path, node)}"
        last = node.body[-1]
        if isinstance(last, ast.Raise) and last.exc is None:
            # It cleans up, and lets the exception go on.
            continue
        caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        if {"Exception", "BaseException"} & set(map(dotted, caught)):
            boundary = f"{name(path)}:{enclosing_function(path, node)}"
            assert boundary in BOUNDARIES, boundary
            seen.add(boundary)
            logged = {dotted(call.func).rpartition(".")[2] for call in calls_in(node)}
            assert "exception" in logged or boundary == "core/logs.py:_message", boundary
    assert seen == BOUNDARIES
    broad = [
        at(p, n) for p, n in calls("suppress", "contextlib.suppress") if "Exception" in names(n)
    ]
    assert not broad


def calls_in(node: ast.AST) -> list[ast.Call]:
    return [child for child in ast.walk(node) if isinstance(child, ast.Call)]


def names(call: ast.Call) -> set[str]:
    return {dotted(argument) for argument in call.args}


def keyword(call: ast.Call, wanted: str) -> ast.expr | None:
    return next((word.value for word in call.keywords if word.arg == wanted), None)


def literal(node: ast.expr | None) -> str:
    """The text of a string, and of an f-string as far as its first field."""
    if isinstance(node, ast.JoinedStr) and node.values:
        node = node.values[0] if isinstance(node.values[0], ast.expr) else None
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return ""


def test_every_thread_has_a_name():
    for path, call in calls("threading.Thread", "Thread"):
        assert keyword(call, "name") is not None, at(path, call)
        daemon = keyword(call, "daemon")
        assert isinstance(daemon, ast.Constant) and daemon.value is True, at(path, call)


@pytest.mark.parametrize("bridge", BRIDGES)
def test_every_thread_stands_in_the_design_page(bridge):
    used = {
        (at(path, call), text)
        for path, call in found_in_all(ast.Call)
        if isinstance(call, ast.Call) and name(path).startswith(f"{bridge}/")
        for argument in [*call.args[:1], keyword(call, "name")]
        if re.match(rf"{bridge}\.[a-z]+", text := literal(argument))
        and dotted(call.func).rpartition(".")[2] in ("add", "Thread")
    }
    if not (ROOT / PACKAGE / bridge / ENTRY.get(bridge, "service.py")).exists():
        # Nothing puts its parts together.
        return
    assert used, f"{bridge} starts no thread by a name that begins with {bridge}."
    rows = [row for row in design(bridge).splitlines() if row.startswith("|")]
    for where, text in used:
        assert any(f"`{text}" in row for row in rows), f"{text!r}, {where}"


def design(bridge: str) -> str:
    return (ROOT / f"docs/design-{bridge}.md").read_text(encoding="utf-8")


def has_comment(path: Path, node: ast.expr | ast.stmt) -> bool:
    text = path.read_text(encoding="utf-8").splitlines()
    return "#" in text[node.lineno - 1] or text[node.lineno - 2].lstrip().startswith("#")


def test_every_lock_says_what_it_guards():
    for path, call in calls(*(f"threading.{kind}" for kind in ("Condition", "Lock", "RLock"))):
        assert has_comment(path, call), at(path, call)


def test_every_queue_has_a_limit_or_says_what_limits_it():
    limits = {"Queue": "maxsize", "SimpleQueue": "", "deque": "maxlen"}
    endless = [
        at(path, node)
        for path, node in found_in_all(ast.Call)
        if isinstance(node, ast.Call)
        and (kind := dotted(node.func).rpartition(".")[2]) in limits
        and not node.args
        and keyword(node, limits[kind]) is None
        and not has_comment(path, node)
    ]
    assert not endless


def test_files_are_written_in_one_place():
    for path, call in calls("open", "os.fdopen"):
        mode = literal(call.args[1] if len(call.args) > 1 else keyword(call, "mode"))
        if set(mode) & set("wax+"):
            assert name(path) in WRITERS, at(path, call)
    for path, node in found_in_all(ast.Attribute):
        assert isinstance(node, ast.Attribute)
        assert node.attr not in ("write_text", "write_bytes"), at(path, node)


def defined_here(path: Path) -> set[str]:
    """Every ``_name`` that a module binds: functions, classes, attributes, parameters, fields."""
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.attr if isinstance(node, ast.Attribute) else node.id)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
    return found


def private(word: str) -> bool:
    return word.startswith("_") and not word.startswith("__")


def test_private_names_stay_in_their_module():
    for path in sources():
        defined = defined_here(path)
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom):
                assert not [a.name for a in node.names if private(a.name)], at(path, node)
            elif isinstance(node, ast.Attribute) and private(node.attr):
                if not {dotted(node), node.attr} & PUBLIC_ALL_THE_SAME:
                    assert node.attr in defined, f"{node.attr} at {at(path, node)}"


def test_what_runs_a_real_hermes_is_marked_as_such():
    for path in sorted((ROOT / "tests/gateway").glob("test_*.py")):
        assert "pytest.mark.gateway" in path.read_text(encoding="utf-8"), path


def test_no_test_uses_a_mock_library():
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found = {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found = {f"{node.module}", *(f"{node.module}.{alias.name}" for alias in node.names)}
            else:
                continue
            assert not found & {"unittest", "unittest.mock", "mock", "pytest_mock"}, path
