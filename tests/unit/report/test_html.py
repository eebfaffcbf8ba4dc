"""The page: complete, self-contained, escaped."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html import escape, unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from messages import one_line
from places import CONFIG

from recaps.config.load import load
from recaps.report import charts, html
from recaps.report.draw import markdown

pytestmark = pytest.mark.unit

LOADS = {"src", "srcset", "poster", "data", "action"}
VOID = {"meta", "img", "br", "link", "hr", "input"}


class Page(HTMLParser):
    """Collects ids and what would be loaded, and checks that every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loads: list[str] = []
        self.tags: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        if "id" in values:
            self.ids.append(values["id"])
        if tag == "a":
            self.links.append(values["href"])
        self.loads += [value for name, value in values.items() if name in LOADS]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def readme(folder: Path, text: str, heading: str = "## How it is read here") -> dict[str, Path]:
    """The README of `sparse`, with a text in the part that the page shows."""
    file = folder / "README.md"
    file.write_text(f"# A title\n\nBefore.\n\n{heading}\n\n{text}\n\n## What was found\n\nAfter.\n")
    return {"sparse": file}


def test_the_page_is_whole(tree: Callable[..., Any]) -> None:
    results = tree()
    text = results.build()
    page = Page(text)
    paper = results.project.papers["sparse"]
    for name in (*paper.tables, *paper.figures):
        assert f"sparse-{name}" in page.ids
    for output in (*paper.tables.values(), *paper.figures.values()):
        assert output.title in text
    assert "sparse/table-1/sparsecaps-affnist-a" in page.ids
    assert text.count('<polyline class="curve') == len(paper.variants) * len(results.seeds)
    assert text.count('class="run"') == len(paper.variants) * len(results.seeds)
    assert "Not made in this run" not in text
    assert "Stand-in data" not in text
    assert f"<td>svm</td><td>{escape(paper.protocols['affnist-b'].title)}</td>" in text
    assert "<td>mnist-40/train, affnist-generated/test</td>" in text
    assert f"from mnist/train-images-idx3-ubyte.gz <code>{'4' * 64}</code>" in text
    for fact in ("0123456789ab", "2025-01-02", "cpu (2 cores)", "27 min", "8,215,728", "4" * 64, "torch 2.13.0"):
        assert fact in text


def test_the_seeds_of_a_variant_share_a_row(tree: Callable[..., Any]) -> None:
    results = tree(seeds=(0, 1))
    record = results.files.run("sparse", "dense", 1) / "record.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "wall_seconds": 7200.0, "device": "another"}))
    (row,) = re.findall(r"<tr><td>dense</td>.*?</tr>", results.build(linked=True), re.DOTALL)
    cells = [re.sub(r"<.*?>", "", cell).strip() for cell in re.findall(r"<td.*?</td>", row, re.DOTALL)]
    assert cells[1] == "0, 1"
    assert cells[4] == "27 min to 2 h 00 min"
    assert cells[5] == "512"
    assert cells[7] == "cpu (2 cores), another"
    for seed in (0, 1):
        assert f'href="runs/sparse/dense/seed-{seed}/record.json"' in row


def test_it_loads_nothing(tree: Callable[..., Any]) -> None:
    page = Page(text := tree().build())
    assert page.loads
    assert all(load.startswith("data:") for load in page.loads)
    assert not {"script", "link", "iframe"} & set(page.tags)
    assert "@import" not in text
    assert "url(" not in text


def test_numbers_in_percent_have_a_picture(tree: Callable[..., Any]) -> None:
    results = tree()
    name = 'alt="Our numbers against the published ones"'
    assert re.search(f'src="data:image/png[^"]*" {name}', results.build())
    assert f'src="scorecard.png" {name}' in results.build(linked=True)
    card = pd.read_csv(results.root / "scorecard.csv")
    card[card["kind"] != "number"].to_csv(results.root / "scorecard.csv", index=False)
    assert name not in results.build()


def test_anchors_lead_somewhere(tree: Callable[..., Any]) -> None:
    page = Page(tree().build())
    assert len(page.ids) == len(set(page.ids))
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)


def test_everything_is_escaped(tree: Callable[..., Any]) -> None:
    results = tree(seeds=(0,))
    evil = "<script>alert('&')</script>"
    (results.papers / "table-1.md").write_text(markdown(pd.DataFrame({evil: [evil], "published": [1]})))
    card = (results.root / "scorecard.csv").read_text()
    (results.root / "scorecard.csv").write_text(card.replace("SPARSECAPS with an SVM", evil))
    file = results.run("dense", 0) / "record.json"
    record = json.loads(file.read_text())
    record |= {"device": evil, "packages": {evil: evil}, "command": evil, "config": {evil: evil}}
    file.write_text(json.dumps(record))
    written = f"{evil} [x](javascript:alert(1)) ![p](https://example.org/p.png)"
    page = Page(text := results.build(readmes=readme(results.root, written)))
    assert "script" not in page.tags
    assert "&lt;script&gt;" in text
    assert not [link for link in page.links if link.startswith("javascript")]
    assert all(load.startswith("data:") for load in page.loads)


def test_stand_ins_are_named_on_the_page(tree: Callable[..., Any]) -> None:
    text = tree("smoke", stand_in=True).build()
    assert "<b>Stand-in data: no verdicts.</b>" in text
    assert not re.search(r"badge (good|fair|bad)", text)


def test_a_partial_run(tree: Callable[..., Any]) -> None:
    results = tree(seeds=(0,))
    (results.papers / "figure-3.png").unlink()
    (results.papers / "figure-4.csv").unlink()
    (results.papers / "table-2.csv").unlink()
    for file in results.run("dense", 0).iterdir():
        if file.is_file():
            file.unlink()
    (results.run("supcaps", 0) / "history.csv").unlink()
    text = results.build()
    outputs = results.project.papers["sparse"].outputs
    assert f"Not made in this run: {outputs['table-2'].title}; {outputs['figure-3'].title}" in text
    assert "sparse-figure-3" not in Page(text).ids
    assert "dense, seed 0" not in text


def test_a_paper_without_a_data_set(tree: Callable[..., Any]) -> None:
    results = tree(seeds=(0,), paper="discriminative", without=("fashion-mnist",))
    text = results.build()
    page = Page(text)
    head = text[text.index("<header>") : text.index("</header>")]
    assert "<dt>Data sets left out</dt><dd>fashion-mnist</dd>" in head
    figure = results.project.left_out["discriminative"].outputs["figure-2"]
    lost = f"fashion-dr, fashion-l1, fashion-l1-fc, fashion-l2, fashion-l2-fc; {figure}"
    sentence = f"without fashion-mnist; left out: {lost}"
    assert f'<p class="small">Made {sentence}' in text
    assert f"<li>discriminative was made {sentence}" in text
    assert "discriminative-figure-2" not in page.ids
    assert "discriminative-figure-3" in page.ids
    assert "Left out, as they need fashion-mnist: fashion-dr" in text
    assert "fashion-dr was left out: it needs fashion-mnist" in text
    assert "Not made in this run" not in text


def test_a_whole_paper_tells_of_nothing_left_out(tree: Callable[..., Any]) -> None:
    text = tree(seeds=(0,), paper="discriminative").build()
    assert "left out" not in text


def test_a_history_with_test_errors(tree: Callable[..., Any]) -> None:
    results = tree(seeds=(0,))
    before = results.build()
    file = results.run("dense", 0) / "history.csv"
    history = pd.read_csv(file)
    history["test_error"] = [2.5 if row == 3 else None for row in range(len(history))]
    history.to_csv(file, index=False)
    assert results.build() == before


def test_timings_say_where_they_were_made(tree: Callable[..., Any]) -> None:
    results = tree(seeds=(0,), paper="discriminative")
    text = results.build()
    for part in ("Timing <code>steps</code>", "2 rounds of", "PyTorch 2.13.0", "commit <code>fedcba98</code>"):
        assert part in text
    (results.papers / "timings" / "steps.json").unlink()
    assert "Timing <code>" not in results.build()


def test_limitations(tree: Callable[..., Any]) -> None:
    results = tree(seeds=(0,), dirty=True)
    file = results.run("dense", 0) / "record.json"
    record = json.loads(file.read_text())
    file.write_text(json.dumps(record | {"steps": 7}))
    text = results.build()
    for sentence in (
        "The set affnist was replaced by affnist-generated, which the papers did not use.",
        "One seed per variant",
        "Stopped before the planned number of steps: dense.",
        "claims have no measured value at this scale",
        "uncommitted changes",
    ):
        assert sentence in text
    assert "cifar10" not in text, "no variant uses it"


@pytest.mark.parametrize(("commits", "shown"), [(2, "<dd>aaaa0, aaaa1</dd>"), (4, "4; each run")])
def test_many_commits_are_counted(tree: Callable[..., Any], commits: int, shown: str) -> None:
    results = tree(seeds=(0, 1))
    for place, file in enumerate(sorted(results.root.rglob("runs/*/*/*/record.json"))):
        record = json.loads(file.read_text())
        file.write_text(json.dumps(record | {"git": {"commit": f"aaaa{place % commits}", "dirty": False}}))
    text = results.build()
    assert "<dt>Commits</dt>" in text
    assert shown in text


def test_readings_stand_in_the_papers_section(tree: Callable[..., Any], tmp_path: Path) -> None:
    readmes = readme(tmp_path, "One word.\n\n### Masks\n\n| field | default |\n|---|---|\n| `mask` | a |")
    text = tree(seeds=(0,)).build(readmes=readmes)
    section = text[text.index('<h3 id="readings-sparse">') : text.index('<h3 id="runs-sparse">')]
    assert "<p>One word.</p>" in section
    assert "<h4>Masks</h4>" in section
    assert '<div class="wide" tabindex="0"><table>' in section
    assert "<code>mask</code>" in section
    assert "src/recaps/papers/sparse/README.md" in section
    assert "Before." not in text
    assert "After." not in text
    assert 'href="#readings-sparse"' in text


@pytest.mark.parametrize("heading", [None, "## Another heading"])
def test_a_readme_without_readings_shows_nothing(tree: Callable[..., Any], tmp_path: Path, heading: str | None) -> None:
    readmes = readme(tmp_path, "One word.", heading) if heading else {}
    text = tree(seeds=(0,)).build(readmes=readmes)
    assert "One word." not in text
    assert "readings-sparse" not in text


def test_readings_link_to_no_file(tree: Callable[..., Any], tmp_path: Path) -> None:
    readmes = readme(tmp_path, "[*rows*](search.csv), [there](#what-was-found), [web](https://example.org/x)")
    text = tree(seeds=(0,)).build(readmes=readmes)
    links = Page(text).links
    assert "<p><em>rows</em>, there, <a" in text
    assert "https://example.org/x" in links
    assert not [link for link in links if link.endswith(("search.csv", "#what-was-found"))]


def test_code_of_readings_breaks_between_words(tree: Callable[..., Any], tmp_path: Path) -> None:
    text = tree(seeds=(0,)).build(readmes=readme(tmp_path, "`model.mask_grouping` and `a_<b>`"))
    assert "<code>model.<wbr>mask_<wbr>grouping</code>" in text
    assert "<code>a_<wbr>&lt;b&gt;</code>" in text


def test_tables_show_numbers_as_their_markdown_does(tree: Callable[..., Any]) -> None:
    results = tree(seeds=(0,))
    values = pd.DataFrame({"algorithm": ["A", "B"], "ours": [9.72222, 90], "published": [None, 1234.5]})
    (results.papers / "table-1.csv").write_text(values.to_csv(index=False))
    (results.papers / "table-1.md").write_text(f"**T**\n\nC.\n\n{markdown(values)}")
    text = results.build()
    assert '<td class="t">A</td><td>9.72</td><td></td>' in text
    assert '<td class="t">B</td><td>90.00</td><td>1234.50</td>' in text
    assert "9.72222" not in text


def test_checks_stand_apart_from_claims(tree: Callable[..., Any]) -> None:
    text = tree(seeds=(0,)).build()
    heading, conjectures = text.index("<h4>Checks of the configuration</h4>"), text.index('<section id="conjectures"')
    rows = re.findall(r'<tr id="(sparse/[^"]+)"', text[heading:conjectures])
    assert rows == ["sparse/section-2-2/mask-active"]
    assert '<tr id="sparse/section-4/robust"' in text[conjectures:]
    claims = len(re.findall(r'<tr id="sparse/', text[:heading]))
    assert f"<p>{claims} claims. Every verdict is computed.</p>" in text


def test_papers_without_claims_come_last(tree: Callable[..., Any]) -> None:
    results = tree(seeds=(0,))
    results.project = load({"scale": "desk", "seeds": [0], "papers": ["comparison", "sparse"]}, CONFIG)
    page = Page(results.build())
    assert [name for name in page.ids if name.startswith("paper-")] == ["paper-sparse", "paper-comparison"]
    assert "claims-sparse" in page.ids
    assert "claims-comparison" not in page.ids
    assert "#claims-comparison" not in page.links


def test_published_is_for_readers(tree: Callable[..., Any]) -> None:
    results = tree(seeds=(0,))
    text = results.build()
    cells = re.findall(r"</details>\s*</td>\s*<td>(.*?)</td>", text)
    assert "73.13 (our limit: at least 59)" in cells
    assert "3 (our limit: 2.5 to 3.5)" in cells
    assert "no numbers" in cells
    assert not [cell for cell in cells if "sparsecaps" in cell]


@pytest.mark.parametrize(("scale", "profile"), [("smoke", "smoke"), ("desk", "local")])
def test_the_command_that_made_it(tree: Callable[..., Any], scale: str, profile: str) -> None:
    text = tree(scale, seeds=(0,)).build()
    assert f"<code>snakemake --profile profiles/{profile} --config scale={scale}</code>" in text


def test_the_command_names_data_sets_that_were_replaced_or_left_out(tree: Callable[..., Any]) -> None:
    replaced = {"cifar10": "cifar10-jpeg"}
    text = tree("desk", (0,), "discriminative", ("fashion-mnist", "discriminative/mnist-l1"), replaced).build()
    (command,) = re.findall(r"<code>snakemake .*? --config scale=desk (.*?)</code>", text)
    options = "'datasets={cifar10: cifar10-jpeg}' 'without=[fashion-mnist, discriminative/mnist-l1]'"
    assert unescape(command) == options


def test_rows_with_one_trained_model_count_as_one_training() -> None:
    run = {"paper": "sparse.attacks", "seed": 0, "wall_seconds": 30.0}
    rows = [run | {"variant": name, "trained": "sparse/em-28"} for name in ("a", "b")]
    other = {"paper": "sparse", "variant": "dense", "seed": 0, "wall_seconds": 60.0}
    facts = dict(html._facts(load({"scale": "desk", "papers": ["sparse"]}, CONFIG), [*rows, other]))
    assert facts["Training runs"] == "2, 90 s in all"


def test_narrow_screens_get_the_short_name(tree: Callable[..., Any]) -> None:
    assert '</span><span class="short">sparse</span></a>' in tree(seeds=(0,)).build()


def test_large_data_is_linked(tree: Callable[..., Any]) -> None:
    results = tree(seeds=(0,))
    (results.papers / "figure-3.csv").write_text("a,b\n" + "1,2\n" * 60_000)
    assert "papers/sparse/figure-3.csv" in Page(results.build()).links


def test_the_page_is_a_function_of_the_files(tree: Callable[..., Any]) -> None:
    results = tree(seeds=(0,))
    assert results.build() == results.build()


def test_broken_files_are_told_in_one_line(tree: Callable[..., Any]) -> None:
    results = tree(seeds=(0,))
    (results.run("dense", 0) / "history.csv").write_text("a,b\n1,2\n")
    with one_line("no columns 'step' and 'loss'"):
        results.build()
    picture = results.papers / "figure-1.png"
    for broken in (b"GIF", picture.read_bytes()[:20]):
        picture.write_bytes(broken)
        with one_line("not a PNG"):
            results.build()
    (results.root / "scorecard.csv").unlink()
    with one_line(r"scorecard\.csv: no such file"):
        results.build()


def test_drawings() -> None:
    drawing = charts.strip(90, 1, 85, (84, 86))
    assert drawing.count("<circle") == 1
    assert 'aria-hidden="true"' in drawing  # the cells beside it say the same
    assert 'aria-label="loss &lt;85&gt;"' in charts.curves([[(0, 5.0)]], "loss <85>")
    assert charts.curves([[(0, float("nan"))]], "nothing") == ""
    assert charts.curves([[(1, 0.0), (2, -1.0)]], "negative").count("<polyline") == 1
    assert charts.curves([[(0, 5.0)]], "one point").count("<polyline") == 1


def test_values_are_drawn_at_their_places() -> None:
    """From 84 to 91, at 6 to 144 units."""
    drawing = charts.strip(90, 1, 85, (84, 86))
    places = {value: f"{6 + (value - 84) / 7 * 138:.1f}" for value in range(84, 92)}
    assert f'<circle cx="{places[85]}"' in drawing
    assert f'<path class="interval" d="M{places[84]} 11H{places[86]}"' in drawing
    assert f'<path class="published" d="M{places[90]} 1V21"' in drawing
    assert f'<rect x="{places[89]}" width="{float(places[91]) - float(places[89]):.1f}"' in drawing


def test_curves_have_a_logarithmic_axis_if_they_can() -> None:
    """Steps from 46 to 252 units; losses from 8 (highest) to 112 (lowest)."""
    ends = [(0, 100.0), (4, 1.0)]
    (points,) = re.findall(r'points="([^"]*)"', charts.curves([[*ends, (2, 10.0)]], "loss"))
    assert points == "46,8 252,112 149,60"
    (points,) = re.findall(r'points="([^"]*)"', charts.curves([[(0, 100.0), (4, 0.0), (2, 50.0)]], "loss"))
    assert points == "46,8 252,112 149,60"


@pytest.mark.parametrize(
    ("losses", "ends"),
    [
        ((2.5, 0.81), ("2.5", "0.81")),
        ((2.30258, 2.29871), ("2.303", "2.299")),
        ((2.302585, 2.302581), ("2.30259", "2.30258")),
        ((5.0, 5.0), ("", "5")),
    ],
)
def test_the_ends_of_an_axis_are_told_apart(losses: tuple[float, float], ends: tuple[str, str]) -> None:
    drawing = charts.curves([list(enumerate(losses))], "loss")
    assert tuple(re.findall(r'<text x="41"[^>]*>([^<]*)</text>', drawing)) == ends


def test_thinning_keeps_both_ends() -> None:
    assert charts.thin(range(5), 10) == [0, 1, 2, 3, 4]
    kept = charts.thin(range(1000), 200)
    assert (len(kept), kept[0], kept[-1]) == (200, 0, 999)
    assert len(set(kept)) == 200


def test_captions_show_code_and_no_html() -> None:
    assert html.code("|b| < 0.01 at `smoke` and `<b>`") == (
        "|b| &lt; 0.01 at <code>smoke</code> and <code>&lt;b&gt;</code>"
    )


@pytest.mark.parametrize(
    ("seconds", "text"), [(4.21, "4.21 s"), (600, "10 min"), (3599, "1 h 00 min"), (11100, "3 h 05 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert html.duration(seconds) == text


def test_sizes_and_p_values() -> None:
    assert (html.size(812e6), html.size(1.4e9)) == ("812 MB", "1.4 GB")
    assert (html.p_text(0.0002), html.p_text(0.04), html.p_text(float("nan"))) == ("< 0.001", "0.040", "")
