"""The house rules: imports point one way, nothing shadows the standard library, commits carry no machine's paths."""

import ast
import subprocess
import sys
from pathlib import Path

from support import imports

ROOT = Path(__file__).parents[3]


def test_imports_point_one_way():
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def test_no_package_shadows_the_standard_library():
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert "engine" in packages
    assert not packages & set(sys.stdlib_module_names)


def test_modules_are_run_by_the_one_command_that_finds_them_wherever_it_is_started():
    """``-m`` alone takes a folder of the caller's for a package of ours, where it has the name of one."""
    named = {
        name
        for name, text in imports.modules(*imports.PACKAGES).items()
        for node in ast.walk(imports.parsed(text))
        if isinstance(node, ast.Constant) and node.value == "-m"
    }
    assert named == {"localcluster.process"}
