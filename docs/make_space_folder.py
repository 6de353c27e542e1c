"""Make the folder to upload as a Space: the page, a wheel of this clone, and the requirements of the wheel.

    python docs/make_space_folder.py [FOLDER]     (default dist/space; needs hatchling)

The folder never refers to this package on a package index.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from email.parser import HeaderParser
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent


def main(folder: Path) -> None:
    """Rebuild the folder."""
    if folder.exists() and not (folder / "mdir_space").is_dir():
        raise SystemExit(f"{folder} is there and is not a Space; name another folder")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "space", folder, ignore=shutil.ignore_patterns("__pycache__", "*.whl"))
    wheel = build_wheel(folder)
    requirements = folder / "requirements.txt"
    requirements.write_text(carried_requirements(wheel, requirements.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(f"{folder}\nhf upload YOU/mdir-hf {folder} . --repo-type space\n")


def build_wheel(folder: Path) -> Path:
    """Build a wheel of this clone with the installed hatchling, which needs no network."""
    with tempfile.TemporaryDirectory() as built:
        command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", built, ROOT]
        subprocess.run(command, check=True)
        (wheel,) = Path(built).glob("*.whl")
        return Path(shutil.copy(wheel, folder))


def carried_requirements(wheel: Path, uncarried: str) -> str:
    """Return the requirements of a Space, with the package itself replaced by its own requirements."""
    lines = [line for line in uncarried.splitlines() if line and not line.startswith(("#", "mdir-hf["))]
    pinned = {canonicalize_name(Requirement(line).name) for line in lines}
    with ZipFile(wheel) as files:
        (name,) = (name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = HeaderParser().parsestr(files.read(name).decode())
    required = [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]
    needed = {str(requirement) for requirement in requirements_of(required, "") if requirement.name not in pinned}
    needed |= {str(requirement) for requirement in requirements_of(required, "space")}
    return "\n".join(["# Requirements of the wheel in this folder.", *sorted(needed), *lines, ""])


def requirements_of(required: list[Requirement], extra: str) -> Iterator[Requirement]:
    """Yield the requirements of an extra, including requirements of extras that it refers to."""
    for requirement in required:
        if requirement.marker is None:
            applies = not extra
        else:
            applies = bool(extra) and requirement.marker.evaluate({"extra": extra})
        if not applies:
            continue
        if canonicalize_name(requirement.name) == "mdir-hf":
            for further in sorted(requirement.extras):
                yield from requirements_of(required, further)
        else:
            plain = Requirement(str(requirement))
            plain.marker = None
            yield plain


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist" / "space")
