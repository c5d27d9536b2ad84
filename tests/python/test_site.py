"""The site builds without a warning: links work, the reference has every public name, and no page is wider than a phone."""

import inspect
import operator
import re
import shutil
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote, urlsplit

import pytest

import robocache

pytest.importorskip("torch")
ROOT = Path(__file__).parents[2]
PHONE, SCREEN = 400, 1280  # pixels


class Links(HTMLParser):
    """Collects the ids of a page, and the targets of its links and pictures."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.targets = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.ids |= {attributes[name] for name in ("id", "name") if attributes.get(name)}
        self.targets += [attributes[name] for name in ("href", "src") if attributes.get(name)]


def dead_links(folder):
    """Returns "page: link" for each link within the site to a missing file or heading."""
    pages = {path.resolve(): Links(path.read_text()) for path in folder.rglob("*.html")}
    dead = []
    for path, page in pages.items():
        for target in page.targets:
            link = urlsplit(target)
            if link.scheme or link.netloc:
                continue
            file = (path.parent / unquote(link.path)).resolve() if link.path else path
            if not file.exists() or (link.fragment and file in pages and unquote(link.fragment) not in pages[file].ids):
                dead.append(f"{path.relative_to(folder.resolve())}: {target}")
    return dead


def unrendered_tables(folder):
    """Returns each page that shows a row of a table as text, with the row's beginning."""
    pages = {path.relative_to(folder): path.read_text() for path in sorted(folder.rglob("*.html"))}
    return [f"{path}: {row}" for path, text in pages.items() for row in re.findall(r"<p>(\|.{0,40})", text)]


def undocumented(module, names):
    """Returns public names of a module, with methods and properties, that have neither a docstring nor a protocol's."""
    undocumented_names = []
    protocols = [getattr(module, name) for name in names if getattr(getattr(module, name), "_is_protocol", False)]
    protocol_members = {
        member for protocol in protocols for member in vars(protocol) if inspect.getdoc(getattr(protocol, member))
    }
    for name in names:
        value = getattr(module, name)
        text = inspect.getdoc(value) or ""
        if not text or text == inspect.getdoc(type(value)):
            undocumented_names.append(name)
        if not inspect.isclass(value):
            continue
        for member, attribute in vars(value).items():
            if (
                member.startswith("_")
                or member in protocol_members
                or not (inspect.isroutine(attribute) or isinstance(attribute, property))
            ):
                continue
            if not inspect.getdoc(getattr(value, member)) and not re.search(rf"^\s*{member}:", text, re.MULTILINE):
                undocumented_names.append(f"{name}.{member}")
    return undocumented_names


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("sphinx", reason="NOT RUN: the site needs sphinx; pip install 'robocache[docs]'")
    pytest.importorskip("furo", reason="NOT RUN: the site needs furo; pip install 'robocache[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "docs", str(folder)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr
    return folder


def test_links_of_the_site_work(site):
    assert len(list(site.rglob("*.html"))) > 30
    assert dead_links(site) == []


def test_a_dead_link_is_found(tmp_path):
    (tmp_path / "a.html").write_text('<h1 id="top">a</h1><a href="b.html#there">b</a><img src="none.png">')
    (tmp_path / "b.html").write_text('<p id="here"><a href="a.html#top">a</a> <a href="https://example.org/x">x</a>')
    assert dead_links(tmp_path) == ["a.html: b.html#there", "a.html: none.png"]


def test_every_table_is_rendered(site, tmp_path):
    assert unrendered_tables(site) == []
    (tmp_path / "a.html").write_text("<p>a | b</p><p>| <code>message</code> | remedy |</p>")
    assert unrendered_tables(tmp_path) == ["a.html: | <code>message</code> | remedy |</p>"]


def test_every_public_name_is_in_the_reference(site):
    ids = Links((site / "site/reference.html").read_text()).ids
    names = [f"robocache.{name}" for name in robocache.__all__]
    names += [f"robocache.{room}.{name}" for room in ("actions", "live") for name in getattr(robocache, room).__all__]
    modules = {name for name in names if inspect.ismodule(operator.attrgetter(name.partition(".")[2])(robocache))}
    assert [name for name in names if name not in ids and f"module-{name}" not in ids] == []
    assert modules == {"robocache.actions", "robocache.actions.presets", "robocache.live"}


def test_every_public_header_is_in_the_reference_without_its_private_parts(site):
    page = unescape(re.sub("<[^>]+>", "", (site / "site/headers.html").read_text()))
    headers = re.findall(r'#include "(.+)"', (ROOT / "src/robocache/robocache.hpp").read_text())
    assert len(headers) > 15 and [header for header in headers if f"\n{header}" not in page] == []
    assert "std::optional<int64_t> covered_until_ns() const;" in page  # the last public member of Chunks
    assert not re.search("^ *private:|std::deque<Chunk> chunks_|#include <", page, re.MULTILINE)


def test_every_public_name_has_a_docstring():
    for module in (robocache, robocache.actions, robocache.live):
        assert undocumented(module, module.__all__) == []


def test_a_name_without_a_docstring_is_found():
    class Known:
        """Says what it is."""

        def documented(self):
            """Says what it does."""

        def silent(self):
            pass

    module = SimpleNamespace(Known=Known, silent=lambda: None)
    assert undocumented(module, ["Known", "silent"]) == ["Known.silent", "silent"]


def too_wide(browser, pages, folder):
    """Returns "page at width: its own width" for each page that is wider than a phone or a screen."""
    frames = "".join(
        f'<iframe src="{page.as_uri()}" name="{page.name} at {width}" width="{width}" height="900"></iframe>'
        for page in pages
        for width in (PHONE, SCREEN)
    )
    measure = """<pre id="wide">\n</pre><script>onload = () => {
        for (const frame of document.querySelectorAll('iframe')) {
            const wide = frame.contentDocument.documentElement.scrollWidth;
            document.getElementById('wide').textContent += `measured ${frame.name}: ${wide}\\n`; } }</script>"""
    (folder / "all.html").write_text(frames + measure)
    switches = ["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--dump-dom"]
    command = [browser, *switches, "--virtual-time-budget=60000", (folder / "all.html").as_uri()]
    html = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    widths = re.findall(r"measured (\S+) at (\d+): (\d+)$", html, re.MULTILINE)
    assert len(widths) == 2 * len(pages)
    return [f"{page} at {width}: {own_width}" for page, width, own_width in widths if int(own_width) > int(width)]


@pytest.fixture
def browser():
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("NOT RUN: chromium shows the pages; apt-get install chromium")
    return path


def test_no_page_is_wider_than_the_screen(site, browser, tmp_path):
    assert too_wide(browser, sorted(site.rglob("*.html")), tmp_path) == []


def test_a_page_that_is_too_wide_is_found(browser, tmp_path):
    (tmp_path / "a.html").write_text('<div style="width: 700px">a</div>')
    assert too_wide(browser, [tmp_path / "a.html"], tmp_path) == ["a.html at 400: 708"]


# ---- troubleshooting ----


def test_messages_in_troubleshooting_are_in_the_code():
    text = (ROOT / "docs/troubleshooting.md").read_text()
    messages = [row.split("|")[1] for row in text.splitlines() if row.startswith("| ") and "---" not in row]
    quotes = [quote for message in messages for quote in re.findall(r"`([^`]+)`", message)]
    parts = [part.strip() for quote in quotes for part in quote.split("...") if part.strip()]
    assert len(parts) > 20
    code = "".join(
        path.read_text()
        for folder in ("python/robocache", "src/robocache")
        for path in (ROOT / folder).rglob("*.*p*")
        if path.suffix in (".py", ".cpp", ".hpp")
    )
    code = re.sub(r'"\s*\n\s*f?"', "", code)  # joins messages that continue on the next line
    assert [part for part in parts if part not in code] == []
