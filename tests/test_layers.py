"""The import arrows of the package, read from its sources."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

FOLDERS = {"homology", "anatomy", "vocabulary", "checkpoint", "hub"}
GROUND = {"report", "names", "errors", "installing", "processor", "budgets", "validation", "plain_yaml", "_version"}
JOINED = FOLDERS | GROUND | {"comparison", "checker", "inspection", "figures", "saving"}
MANY = {"fingerprints", "merges", "trees", "index", "survey", "publishing"}

# Room of mdir_hf -> the rooms it may import from. A new room fails the first test below until it is given a place here.
ALLOWED = {
    "errors": set(),
    "_version": set(),
    "names": set(),
    "installing": set(),
    "processor": {"errors"},
    "budgets": set(),
    "validation": set(),
    "plain_yaml": set(),
    "report": {"errors", "names", "budgets", "validation", "_version"},
    **dict.fromkeys(FOLDERS, GROUND),
    "figures": GROUND,
    "saving": GROUND | {"figures"},
    "loaded": GROUND | {"checkpoint", "hub"},
    "comparison": FOLDERS | GROUND | {"loaded"},
    "checker": FOLDERS | GROUND | {"comparison", "loaded"},
    "inspection": FOLDERS | GROUND | {"comparison"},
    "cards": JOINED,
    "fingerprints": FOLDERS | GROUND | {"comparison", "saving"},
    "trees": FOLDERS | GROUND | {"comparison", "fingerprints"},
    "index": FOLDERS | GROUND | {"comparison", "checker", "saving", "fingerprints"},
    "survey": FOLDERS | GROUND | {"comparison", "saving", "figures", "cards", "fingerprints", "trees"},
    "training": FOLDERS | GROUND | {"comparison", "loaded", "checker", "saving", "cards"},
    "merges": FOLDERS | GROUND | {"comparison", "checker"},
    "publishing": GROUND | {"hub", "index", "survey"},
    "demo": JOINED,
    "cli": JOINED | MANY | {"cards", "demo"},
    "__main__": {"cli"},
    "__init__": {
        "cards",
        "checker",
        "comparison",
        "figures",
        "fingerprints",
        "hub",
        "index",
        "installing",
        "names",
        "report",
        "saving",
        "survey",
        "training",
        "trees",
    }
    | {"errors", "_version"},
}
# (room, module it may import though its room may not, where): each for a reason.
EXCEPTIONS = {
    # A repository hands out its files as byte sources.
    ("hub", "mdir_hf.checkpoint.sources", "anywhere"),
    # `report.figures()` is what a user writes; matplotlib is loaded by the call and not by the report.
    ("report", "mdir_hf.figures", "in a function"),
    # `report` in a notebook shows itself; the templates are loaded by the call.
    ("report", "mdir_hf.saving.html", "in a function"),
}
FORBIDDEN = {"httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3", "aiohttp"}


def imports_of(path, package_root):
    """Every (module, where) that a file imports, relative ones resolved; ``from a import b`` counts as a.b as well."""
    parts = path.relative_to(package_root.parent).with_suffix("").parts
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        where = "in a function" if id(node) in inside else "anywhere"
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, where
        elif isinstance(node, ast.ImportFrom):
            package = parts[: len(parts) - node.level] if node.level else ()
            module = ".".join([*package, *([node.module] if node.module else [])])
            for alias in node.names:
                yield f"{module}.{alias.name}", where


def room_of(module):
    """The room of a dotted name under mdir_hf: its second part; the package itself is ``__init__``."""
    return [*module.split("."), "__init__"][1]


def broken_arrows(package_root):
    """What a tree of sources imports against the arrows, one sentence each."""
    broken = []
    for path in sorted(package_root.rglob("*.py")):
        file = path.relative_to(package_root.parent).as_posix()
        room = path.relative_to(package_root).parts[0].removesuffix(".py")
        if room not in ALLOWED:
            broken.append(f"{file}: the room {room!r} has no place among the layers")
            continue
        for module, where in imports_of(path, package_root):
            if module.split(".")[0] in FORBIDDEN:
                broken.append(f"{file}: imports {module}; HTTP goes through huggingface_hub.utils")
            if module.split(".")[0] != "mdir_hf":
                continue
            target = room_of(module)
            if target not in ALLOWED:
                target = "__init__"  # a public name, from the package itself
            if target == room or target in ALLOWED[room]:
                continue
            if not any(excused(room, module, where, exception) for exception in EXCEPTIONS):
                broken.append(f"{file}: {room} imports {module}")
    return broken


def excused(room, module, where, exception):
    excused_room, excused_module, excused_where = exception
    return (
        room == excused_room
        and (module + ".").startswith(excused_module + ".")
        and excused_where in ("anywhere", where)
    )


def private_imports(space_root):
    """What the Space imports of the package beyond its public names."""
    import mdir_hf

    public = {f"mdir_hf.{name}" for name in mdir_hf.__all__} | {"mdir_hf"}
    return [
        f"{path.name}: {module}"
        for path in sorted(space_root.rglob("*.py"))
        for module, _ in imports_of(path, space_root)
        if module.split(".")[0] == "mdir_hf" and module not in public
    ]


def test_imports_run_one_way():
    assert broken_arrows(ROOT / "mdir_hf") == []


def test_the_space_uses_only_public_names():
    assert private_imports(ROOT / "space") == []


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("homology/polar.py", "from mdir_hf.hub import ranges"),
        ("homology/polar.py", "from mdir_hf.comparison.plan import Plan"),
        ("homology/polar.py", "import mdir_hf.checkpoint.header"),
        ("homology/polar.py", "from .. import hub"),
        ("homology/deep/polar.py", "from ...hub.ranges import read"),
        ("homology/polar.py", "def f():\n    from mdir_hf.vocabulary import common"),
        ("anatomy/roles.py", "from mdir_hf.checker import HomologyChecker"),
        ("anatomy/roles.py", "from mdir_hf import HomologyChecker"),
        ("anatomy/roles.py", "if TYPE_CHECKING:\n    from mdir_hf.hub import ranges"),
        ("vocabulary/files.py", "from mdir_hf.checkpoint.sources import ByteSource"),
        ("hub/remote.py", "from mdir_hf.checkpoint.header import parse"),
        ("hub/remote.py", "from mdir_hf.checkpoint import sources_of_another_kind"),
        ("report.py", "from mdir_hf.figures import draw"),
        ("report.py", "from mdir_hf.homology import polar"),
        ("figures.py", "from mdir_hf.checker import HomologyChecker"),
        ("errors.py", "from mdir_hf.report import Verdict"),
        ("checker.py", "from mdir_hf.cli import main"),
        ("checker.py", "from mdir_hf.demo import loopback"),
        ("demo/lineage.py", "from mdir_hf.cli import main"),
        ("trees/joining.py", "from mdir_hf.survey.results import SurveyReport"),
        ("index/base_index.py", "from mdir_hf.trees.aligning import align_rows"),
        ("demo/loopback.py", "import requests"),
        ("hub/remote.py", "def f():\n    import httpx"),
        ("hub/remote.py", "from httpx2 import Client"),
        ("utils.py", ""),
    ],
)
def test_an_import_against_the_arrows_is_found(tmp_path, file, source):
    path = tmp_path / "mdir_hf" / file
    path.parent.mkdir(parents=True)
    path.write_text(source)

    assert len(broken_arrows(tmp_path / "mdir_hf")) == 1


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("homology/polar.py", "import torch\nfrom mdir_hf.errors import MdirError\nfrom .matching import assign"),
        ("hub/remote.py", "from mdir_hf.checkpoint.sources import ByteSource"),
        ("hub/remote.py", "from huggingface_hub.utils import get_session"),
        ("report.py", "def figures(self):\n    from mdir_hf.figures import draw"),
        ("checker.py", "from mdir_hf.homology.polar import polar\nfrom mdir_hf.report import HomologyReport"),
        ("cli/compare.py", "from mdir_hf.demo.lineage import build_lineage"),
    ],
)
def test_an_import_along_the_arrows_passes(tmp_path, file, source):
    path = tmp_path / "mdir_hf" / file
    path.parent.mkdir(parents=True)
    path.write_text(source)

    assert broken_arrows(tmp_path / "mdir_hf") == []


def test_a_private_name_in_the_space_is_found(tmp_path):
    (tmp_path / "app.py").write_text("from mdir_hf import HomologyChecker\nfrom mdir_hf.hub.ranges import read\n")

    assert private_imports(tmp_path) == ["app.py: mdir_hf.hub.ranges.read"]


def test_a_class_name_stands_for_one_thing():
    homes = {}
    for path in sorted((ROOT / "mdir_hf").rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(path.relative_to(ROOT).as_posix())
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}
