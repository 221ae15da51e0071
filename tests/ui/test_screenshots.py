"""A picture of every page, light and dark, on a wide screen and a phone, for people to look at.

`make screenshots` keeps them, with `index.html` as a contact sheet. Nothing is compared by pixel.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext
from tests.ui.conftest import Home
from tests.ui.test_accessibility import addresses
from tests.ui.test_pages import signed_in

__all__ = ["addresses", "signed_in"]  # fixtures
SIZES = {"wide": (1440, 900), "phone": (390, 844)}
SCHEMES = ("light", "dark")
SHEET = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Pages</title>
<style>body {{ font: 14px system-ui; margin: 16px }} figure {{ display: inline-block; margin: 8px;
vertical-align: top }} img {{ width: 480px; border: 1px solid #ccc }}
.phone img {{ width: 195px }}</style>{figures}</html>
"""
FIGURE = (
    '<figure class="{size}"><a href="{file}"><img src="{file}" alt="" loading="lazy"></a>'
    "<figcaption>{address}, {scheme}</figcaption></figure>"
)


@pytest.mark.nightly
def test_every_page_has_a_picture(
    home: Home,
    browser: Browser,
    signed_in: BrowserContext,
    addresses: Sequence[str],
    tmp_path: Path,
) -> None:
    folder = Path(os.environ.get("LTRAIN_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    origin = signed_in.new_page()
    origin.goto("/")
    root, figures = origin.url.rstrip("/"), list[str]()
    for scheme in SCHEMES:
        for size, (width, height) in SIZES.items():
            context = browser.new_context(
                base_url=root,
                storage_state=signed_in.storage_state(),
                color_scheme=scheme,  # type: ignore[arg-type]
                viewport={"width": width, "height": height},
            )
            page = context.new_page()
            for number, address in enumerate(addresses):
                page.goto(address)
                file = f"{number:02}-{size}-{scheme}.png"
                page.screenshot(path=folder / file, full_page=True)
                named = {"size": size, "scheme": scheme, "address": address, "file": file}
                figures.append(FIGURE.format(**named))
            context.close()
    (folder / "index.html").write_text(SHEET.format(figures="\n".join(figures)))
    assert len(list(folder.glob("*.png"))) == len(addresses) * len(SIZES) * len(SCHEMES)
