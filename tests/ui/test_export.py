"""The folder that `ltrain ui --export` writes, as a browser opens it without a server."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from tests.fork_server import ltrain_command
from tests.ui.conftest import EVIL, Home

from ltrain_instrument.machine import visible
from ltrain_ui.export import file_name


def export(home: Home, run: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [ltrain_command(), "ui", "--store", home.store, "--export", run]
    environment = os.environ | {"LTRAIN_HOME": str(home.folder / ".ltrain")}
    return subprocess.run(
        [*command, str(folder)], cwd=home.folder, env=environment, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def site(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "site"
    done = export(home, "demo", folder)
    assert done.returncode == 0, done.stderr
    count = len(list(folder.iterdir()))
    assert done.stdout == f"{count} files in {folder}: open {folder}/index.html\n"
    return folder


def test_every_link_leads_to_a_file(site: Path) -> None:
    for page in site.glob("*.html"):
        for link in re.findall(r' (?:href|src)="([^"]*)"', page.read_text()):
            assert link.startswith("#") or (site / link.partition("#")[0]).exists(), link


def test_pages_lead_from_the_run_to_a_group(site: Path, browser: Browser) -> None:
    page = browser.new_page()
    page.goto((site / "index.html").as_uri())
    expect(page.get_by_role("heading", name="run demo")).to_be_visible()
    assert page.locator("header, form").count() == 0
    page.get_by_role("link", name="train 1").click()
    page.get_by_role("link", name="t1", exact=True).click()
    expect(page.get_by_role("row", name="they part here")).to_contain_text("answer 1")
    expect(page.get_by_text("2 changed.")).to_be_visible()
    assert page.locator("form, [data-live]").count() == 0
    page.get_by_role("link", name="run demo").click()
    page.get_by_role("link", name="val 0").click()
    page.get_by_role("link", name="onerror").click()
    expect(page.get_by_text(visible(EVIL)).first).to_be_visible()
    assert page.locator("img").count() == 0
    page.close()


def test_an_unknown_run_and_a_bad_folder_are_named(home: Home, tmp_path: Path) -> None:
    done = export(home, "dmeo", tmp_path / "site")
    assert done.returncode == 1 and "Did you mean the run 'demo'?" in done.stderr
    assert not (tmp_path / "site").exists()
    (tmp_path / "file").write_text("")
    done = export(home, "demo", tmp_path / "file")
    assert done.returncode == 1 and "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr


def test_two_addresses_have_two_names() -> None:
    addresses = [f"/groups?run=a&mode=train&wave={wave}&task=t" for wave in range(50)]
    addresses += ["/groups?task=a/b", "/groups?task=a-b", f"/groups?task={'x' * 300}"]
    names = {file_name(address) for address in addresses}
    assert len(names) == len(addresses)
    assert all(len(name) < 100 and re.fullmatch(r"[A-Za-z0-9.-]+", name) for name in names)
