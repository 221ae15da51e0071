"""Faces import what they declare on first use."""

import subprocess
import sys
from pathlib import Path

import pytest

FACE = """
from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from shop import prices
    from shop.build import LIMIT, build

open_face(__name__)
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A folder with a package whose function `build` has the name of its module."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").write_text(FACE)
    (tmp_path / "shop" / "prices.py").write_text("PRICE = 3")
    (tmp_path / "shop" / "build.py").write_text(
        "LIMIT = 7\n\ndef build() -> int:\n    return LIMIT"
    )
    return tmp_path


def _run(folder: Path, code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_a_face_imports_no_module_before_a_name_is_used(shop: Path) -> None:
    loaded = "print(*sorted({'shop.build', 'shop.prices'} & set(sys.modules)))"
    assert _run(shop, f"import sys, shop; {loaded}") == ""
    assert _run(shop, f"import sys, shop; shop.LIMIT; {loaded}") == "shop.build"


def test_a_function_is_found_under_the_name_of_its_module(shop: Path) -> None:
    assert _run(shop, "from shop import build; print(build())") == "7"
    assert _run(shop, "import shop.build; from shop import build; print(build())") == "7"
    assert _run(shop, "from shop.build import LIMIT; from shop import build; print(build())") == "7"


def test_a_declared_module_is_imported(shop: Path) -> None:
    assert _run(shop, "from shop import prices; print(prices.PRICE)") == "3"
    assert _run(shop, "import shop.prices; from shop import prices; print(prices.PRICE)") == "3"


def test_a_face_lists_what_it_declares(shop: Path) -> None:
    assert _run(shop, "import shop; print(shop.__all__)") == "['LIMIT', 'build', 'prices']"
    assert _run(shop, "import shop; print('build' in dir(shop))") == "True"
    assert _run(shop, "from shop import *; print(LIMIT, build())") == "7 7"


def test_an_unknown_name_is_an_attribute_error(shop: Path) -> None:
    code = "import shop\ntry:\n    shop.missing\nexcept AttributeError as error:\n    print(error)"
    assert _run(shop, code) == "module 'shop' has no attribute 'missing'"
