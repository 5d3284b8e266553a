"""Measures how the code is laid out, and fails where a figure is worse than the recorded one.

`house.py` prints the figures, `--details` also prints what they count, `--check` compares them with tools/house.json,
and `--record` writes them there. Totals (lines, classes, functions) are printed only: a larger program is not a worse
one. The same file lists names that no module may have, because readers had to ask what is in it.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parent.parent
RECORD = "tools/house.json"
MOST_METHODS = 40
MOST_COMPLEX = 20
MOST_FILES = 20
MOST_LINES = 500
LARGEST_CYCLE = 6

Function = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
BRANCHES = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.Assert, ast.match_case)
QUESTION_WORDS = re.compile(r"(What|Who|Whoever|Whether|How|Those|Which|Where|That|Of|Whose)\b")


@dataclass
class Module:
    """One Python file of the package."""

    name: str
    path: Path
    source: str
    tree: ast.Module
    imports: dict[str, tuple[str, str | None]] = field(default_factory=dict)  # local name -> (module, its attribute)

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def package(self) -> str:
        return self.name if self.is_package else self.name.rpartition(".")[0]

    @property
    def part(self) -> str:
        """The package below the top: `engine` for interlingua.engine.runs."""
        return self.name.split(".")[1] if "." in self.name else ""

    def base_of(self, node: ast.ImportFrom) -> str:
        """Returns the absolute name of the module that an import names."""
        if not node.level:
            return node.module or ""
        parts = self.package.split(".")
        parts = parts[: len(parts) - node.level + 1]
        return ".".join([*parts, node.module] if node.module else parts)


@dataclass
class Figure:
    """One number about the code, and what it counts. `gated` figures must not grow."""

    label: str
    value: int
    counted: list[str] = field(default_factory=list)
    gated: bool = True


class Code:
    """All modules below src/, parsed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.modules: dict[str, Module] = {}
        for path in sorted((root / "src").rglob("*.py")):
            parts = path.relative_to(root / "src").with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            source = path.read_text(encoding="utf-8")
            self.modules[name] = Module(name, path, source, ast.parse(source))
        for module in self.modules.values():
            module.imports = dict(self._imports_of(module))

    def _imports_of(self, module: Module) -> Iterator[tuple[str, tuple[str, str | None]]]:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name in self.modules:
                        yield alias.asname or alias.name, (alias.name, None)
            elif isinstance(node, ast.ImportFrom):
                base = module.base_of(node)
                for alias in node.names:
                    local = alias.asname or alias.name
                    if f"{base}.{alias.name}" in self.modules:
                        yield local, (f"{base}.{alias.name}", None)
                    elif base in self.modules:
                        yield local, (base, alias.name)

    @cached_property
    def classes(self) -> dict[tuple[str, str], ast.ClassDef]:
        """The classes at the top level of a module, by module and name."""
        return {
            (module.name, node.name): node
            for module in self.modules.values()
            for node in module.tree.body
            if isinstance(node, ast.ClassDef)
        }

    def methods_of(self, key: tuple[str, str], seen: frozenset[tuple[str, str]] = frozenset()) -> set[str]:
        """Returns the names of a class's methods, with those of its bases in this project."""
        names = {node.name for node in self.classes[key].body if isinstance(node, FUNCTIONS)}
        for base in self.classes[key].bases:
            parent = self._class_named(key[0], base)
            if parent is not None and parent not in seen:
                names |= self.methods_of(parent, seen | {key})
        return names

    def _class_named(self, module: str, base: ast.expr) -> tuple[str, str] | None:
        """Returns the class that an expression names, as far as it is one of ours."""
        expression = base.value if isinstance(base, ast.Subscript) else base
        imports = self.modules[module].imports
        key: tuple[str, str] | None = None
        if isinstance(expression, ast.Name):
            source, attribute = imports.get(expression.id, (module, expression.id))
            key = (source, attribute) if attribute else None
        elif isinstance(expression, ast.Attribute) and isinstance(expression.value, ast.Name):
            source, attribute = imports.get(expression.value.id, ("", ""))
            key = (source, expression.attr) if attribute is None else None
        return key if key in self.classes else None

    def cycles(self) -> list[list[str]]:
        """Returns the groups of modules that import each other, the largest first. Typing imports count."""
        graph = {
            module.name: {target for target, _ in module.imports.values()} - {module.name}
            for module in self.modules.values()
        }
        return sorted((group for group in connected(graph) if len(group) > 1), key=len, reverse=True)

    def nodes(self) -> Iterator[tuple[Module, ast.AST]]:
        for module in self.modules.values():
            for node in ast.walk(module.tree):
                yield module, node


def connected(graph: dict[str, set[str]]) -> list[list[str]]:
    """Returns the strongly connected components of a graph (Tarjan)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = lowest[node] = len(number)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in number:
                visit(other)
                lowest[node] = min(lowest[node], lowest[other])
            elif other in stack:
                lowest[node] = min(lowest[node], number[other])
        if lowest[node] == number[node]:
            at = stack.index(node)
            groups.append(sorted(stack[at:]))
            del stack[at:]

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, 10 * len(graph) + 1000))
    for node in graph:
        if node not in number:
            visit(node)
    sys.setrecursionlimit(limit)
    return groups


def code_lines(module: Module) -> int:
    """Counts the lines that hold code: no blank lines, comments or docstrings."""
    lines: set[int] = set()
    with module.path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type in (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING):
                lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def complexity(function: Function) -> int:
    """Counts the paths through a function (McCabe). Nested functions count for themselves."""
    total = 1
    open_nodes: list[ast.AST] = list(ast.iter_child_nodes(function))
    while open_nodes:
        node = open_nodes.pop()
        if isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
            continue
        if isinstance(node, BRANCHES):
            total += 1
        elif isinstance(node, ast.BoolOp):
            total += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            total += 1 + len(node.ifs)
        open_nodes.extend(ast.iter_child_nodes(node))
    return total


def private_imports(code: Code) -> list[str]:
    """Lists imports of private parts of other packages."""
    found = []
    for module, node in code.nodes():
        if not isinstance(node, ast.ImportFrom) or node.level or not node.module or node.module == "__future__":
            continue
        names = [*node.module.split("."), *(alias.name for alias in node.names)]
        private = any(name.startswith("_") and not name.startswith("__") for name in names)
        if not node.module.startswith("interlingua") and (private or node.module.startswith("uvicorn.protocols")):
            found.append(f"{module.name}: {node.module}")
    return found


def behind_the_facade(code: Code, part: str | None) -> list[str]:
    """Lists the uses of `engine.store`, `.worker` and `.core` outside the engine, in one package or in all."""
    found = []
    for module in code.modules.values():
        if module.part != "engine" and part in (None, module.part):
            found += [f"{module.name}: {use}" for use in re.findall(r"engine\.(?:store|worker|core)\b", module.source)]
    return found


def totals(code: Code) -> list[Figure]:
    lines: Counter[str] = Counter()
    for module in code.modules.values():
        checker = module.part == "conform" or module.name.startswith("interlingua_conform")
        lines["checker" if checker else "runtime"] += code_lines(module)
    nodes = [node for _, node in code.nodes()]
    tests = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (code.root / "tests").rglob("*.py"))
    return [
        Figure("code lines, runtime", lines["runtime"], gated=False),
        Figure("code lines, checker", lines["checker"], gated=False),
        Figure("lines of tests", tests, gated=False),
        Figure("classes", sum(isinstance(node, ast.ClassDef) for node in nodes), gated=False),
        Figure("functions", sum(isinstance(node, FUNCTIONS) for node in nodes), gated=False),
    ]


def objects(code: Code) -> list[Figure]:
    sizes = sorted(((len(code.methods_of(key)), ".".join(key)) for key in code.classes), reverse=True)
    large = [f"{size} {name}" for size, name in sizes if size > MOST_METHODS]
    stubs = [
        f"{module.name}.{node.name}"
        for module, node in code.nodes()
        if isinstance(node, ast.ClassDef)
        for inner in node.body
        if isinstance(inner, ast.If) and ast.unparse(inner.test) == "TYPE_CHECKING"
    ]
    return [
        Figure(
            "methods of the largest class", sizes[0][0] if sizes else 0, [f"{size} {name}" for size, name in sizes[:10]]
        ),
        Figure(f"classes over {MOST_METHODS} methods", len(large), large),
        Figure("class bodies with TYPE_CHECKING stubs", len(stubs), stubs),
    ]


def layout(code: Code) -> list[Figure]:
    cycles = code.cycles()
    large = [f"{len(group)}: {' '.join(group)}" for group in cycles if len(group) > LARGEST_CYCLE]
    folders = Counter(str(m.path.parent.relative_to(code.root)) for m in code.modules.values() if not m.is_package)
    crowded = [f"{count} {folder}" for folder, count in folders.most_common() if count > MOST_FILES]
    long = [m.name for m in code.modules.values() if len(m.source.splitlines()) > MOST_LINES]
    around = behind_the_facade(code, "protocols")
    everywhere = behind_the_facade(code, None)
    private = private_imports(code)
    return [
        Figure(
            "modules in the largest import cycle",
            len(cycles[0]) if cycles else 0,
            [" ".join(cycles[0])] if cycles else [],
        ),
        Figure(f"import cycles over {LARGEST_CYCLE} modules", len(large), large),
        Figure(f"folders over {MOST_FILES} files", len(crowded), crowded),
        Figure(f"files over {MOST_LINES} lines", len(long), long),
        Figure("protocols that use engine.store or engine.worker", len(around), around),
        Figure("uses of engine.store or engine.worker outside the engine", len(everywhere), everywhere),
        Figure("imports of private parts of other packages", len(private), private),
    ]


def language(code: Code, riddles: list[str]) -> list[Figure]:
    complex_ones = []
    questions = []
    for module, node in code.nodes():
        if isinstance(node, FUNCTIONS) and (paths := complexity(node)) > MOST_COMPLEX:
            complex_ones.append(f"{paths} {module.name}.{node.name}")
        if isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Module)):
            text = ast.get_docstring(node)
            if text and QUESTION_WORDS.match(text):
                questions.append(f"{module.name}.{getattr(node, 'name', '')}: {text.splitlines()[0]}")
    unclear = [name for name in code.modules if name.rsplit(".", 1)[-1] in riddles]
    return [
        Figure(f"functions over complexity {MOST_COMPLEX}", len(complex_ones), sorted(complex_ones, reverse=True)),
        Figure("files with unclear names", len(unclear), unclear),
        Figure("docstrings that open with a question word", len(questions), questions),
    ]


def measure(root: Path, riddles: list[str]) -> list[Figure]:
    code = Code(root)
    return [*totals(code), *objects(code), *layout(code), *language(code, riddles)]


def worse(figures: list[Figure], recorded: dict[str, int]) -> list[str]:
    """Says which figures are worse than the recorded ones, and which ones are not recorded."""
    found = []
    for figure in figures:
        if not figure.gated:
            continue
        before = recorded.get(figure.label)
        if before is None:
            found.append(f"{figure.label}: no figure is recorded. Run: python tools/house.py --record")
        elif figure.value > before:
            listed = "".join(f"\n    {line}" for line in figure.counted[:20])
            found.append(f"{figure.label}: {figure.value}, recorded: {before}{listed}")
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measures how the code is laid out.")
    parser.add_argument("root", nargs="?", type=Path, default=ROOT)
    parser.add_argument("--details", action="store_true", help="print what each figure counts")
    parser.add_argument("--check", action="store_true", help=f"fail where a figure is worse than in {RECORD}")
    parser.add_argument("--record", action="store_true", help=f"write {RECORD}")
    options = parser.parse_args(arguments)
    record = options.root / RECORD
    recorded = json.loads(record.read_text(encoding="utf-8"))
    figures = measure(options.root, recorded["unclear names"])
    if options.record:
        recorded["figures"] = {figure.label: figure.value for figure in figures if figure.gated}
        record.write_text(json.dumps(recorded, indent=2) + "\n", encoding="utf-8")
    for figure in figures:
        print(f"{figure.value:>8,}  {figure.label}")
        if options.details and figure.counted:
            print(*(f"          {line}" for line in figure.counted), sep="\n")
    if options.check and (problems := worse(figures, recorded["figures"])):
        print("\nThe code got worse:", *problems, sep="\n  ", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
