"""The configuration: merging, names, and mistakes, which are reported in one line."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml

from recaps import papers
from recaps.config import manual
from recaps.config.load import Project, load
from recaps.config.reading import check, merge, merged, read_yaml
from recaps.errors import UserError
from recaps.models.options import SupCapsOptions


@pytest.fixture
def config(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(root)
    return Path("config")


def in_dense(**settings: Any) -> dict[str, Any]:
    return {"overrides": {"sparse": {"variants": {"dense": settings}}}}


def in_svm(**settings: Any) -> dict[str, Any]:
    return {"overrides": {"sparse": {"heads": {"svm": settings}}}}


def in_routing(routing: Any, variant: str = "dense", paper: str = "sparse") -> dict[str, Any]:
    return {"overrides": {paper: {"variants": {variant: {"model": {"routing": routing}}}}}}


PAPER = "src/recaps/papers/sparse/paper.yaml with config's overrides: "


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"seeds": [-1]}, "config: seeds.0: Input should be greater than or equal to 0, not -1"),
        ({"seeds": [0, 3, 0]}, "config: seeds: 0 is in the list more than once"),
        ({"seeds": []}, "config: seeds: the list is empty; name at least one seed"),
        (
            in_dense(training={"learning_rate": float("inf")}),
            f"{PAPER}variants.dense.training.learning_rate: Input should be a finite number, not inf",
        ),
        (
            in_dense(model={"boost_step": float("nan")}),
            f"{PAPER}variants.dense.model.boost_step: Input should be a finite number, not nan",
        ),
        ({"sclae": "desk"}, "config: unknown key 'sclae' (did you mean 'scale'?)"),
        ({"scale": "desc"}, "config: scale: there is no scale 'desc' (did you mean 'desk'?)"),
        ({"papers": ["spars"]}, "config: papers: there is no paper 'spars' (did you mean 'sparse'?)"),
        ({"overrides": {"sprase": {}}}, "config: overrides: there is no paper 'sprase' (did you mean 'sparse'?)"),
        ({"papers": "sparse"}, "config: papers: Input should be a list, such as [sparse]"),
        ({"device": "gpu"}, "config: device: Input should be 'auto', 'cpu' or 'cuda', not 'gpu'"),
        (
            in_dense(model={"capsuls": 3}),
            f"{PAPER}unknown key 'variants.dense.model.capsuls' (did you mean 'capsules'?)",
        ),
        (in_dense(traning={}), f"{PAPER}unknown key 'variants.dense.traning' (did you mean 'training'?)"),
        (in_dense(training={"stps": 1}), f"{PAPER}unknown key 'variants.dense.training.stps' (did you mean 'steps'?)"),
        (
            in_dense(model={"family": "sparscaps"}),
            f"{PAPER}variants.dense.model: there is no family 'sparscaps' (did you mean 'sparsecaps'?)",
        ),
        (
            in_dense(model={"capsules": 1}),
            f"{PAPER}variants.dense.model.capsules: Input should be greater than or equal to 2, not 1",
        ),
        (in_dense(probes=3), f"{PAPER}variants.dense.probes: Input should be a mapping, not 3"),
        (
            in_dense(probes={"single-capsules": 0}),
            f"{PAPER}variants.dense.probes.single-capsules: Input should be greater than or equal to 1, not 0",
        ),
        (
            in_dense(probes=["Single"]),
            f"{PAPER}variants.dense.probes.Single: a name consists of lower-case letters, digits and dashes",
        ),
        (in_svm(features=3), f"{PAPER}heads.svm.features: Input should be a list, not 3"),
        (
            {"overrides": {"sparse": {"protocols": {"mnist": {"fit": {"sett": 1}}}}}},
            f"{PAPER}unknown key 'protocols.mnist.fit.sett' (did you mean 'set'?)",
        ),
        (
            {"overrides": {"sparse": {"variants": {"Dense": {"title": "New"}}}}},
            f"{PAPER}variants.Dense: a name consists of lower-case letters, digits and dashes",
        ),
        (
            {"overrides": {"sparse": {"variants": {"dnse": {}}}}},
            f"{PAPER}variants: there is no variant 'dnse' (did you mean 'dense'?); a new one needs a title",
        ),
        (
            {"overrides": {"sparse": {"timings": {"steps": {"variants": ["sparscaps"]}}}}},
            f"{PAPER}timings.steps.variants: no variant 'sparscaps' in this paper (did you mean 'sparsecaps'?)",
        ),
        (
            {
                "overrides": {
                    "sparse": {
                        "timings": {"steps": {"variants": ["dense"]}},
                        "figures": {"figure-3": {"timings": ["stpes"]}},
                    }
                }
            },
            f"{PAPER}figure-3.timings: no timing 'stpes' in this paper (did you mean 'steps'?)",
        ),
        (
            {"overrides": {"sparse": {"timings": {"steps": {"variants": ["dense"], "networks": "papr"}}}}},
            "src/recaps/papers/sparse/paper.yaml: timings.steps.networks: there is no scale 'papr' "
            "(did you mean 'paper'?)",
        ),
        (
            {"overrides": {"sparse": {"timings": {"steps": {"variant": ["dense"]}}}}},
            f"{PAPER}unknown key 'timings.steps.variant' (did you mean 'variants'?)",
        ),
        (
            {"overrides": {"sparse": {"figures": {"figure-3": {"needs": ["dnse"]}}}}},
            f"{PAPER}figure-3.needs: no variant 'dnse' in this paper (did you mean 'dense'?)",
        ),
        ({"overrides": {"sparse": 3}}, f"{PAPER}Input should be a mapping, not 3"),
        *(
            (in_routing(routing), f"{PAPER}variants.dense.model.routing: {message}")
            for routing, message in [
                ("dynmic", "there is no routing 'dynmic' (did you mean 'dynamic'?)"),
                ({"name": "dynmic"}, "there is no routing 'dynmic' (did you mean 'dynamic'?)"),
                (
                    "em",
                    "'em' routes other capsules than those of this family (valid: attention, cosine, dynamic, "
                    "recaps.papers.sparse.em:VectorEM)",
                ),
                (3, "Input should be a mapping, not 3"),
            ]
        ),
        (
            in_routing({"name": "dynamic", "iteratons": 2}),
            f"{PAPER}unknown key 'variants.dense.model.routing.iteratons' (did you mean 'iterations'?)",
        ),
    ],
)
def test_mistake_is_reported_in_one_line(config: Path, values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as raised:
        load(values, config)
    assert str(raised.value) == message


@pytest.mark.parametrize("inside", [True, False])
def test_misspelt_key_in_a_paper_file(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: bool
) -> None:
    """The path of the file is relative if the file is in the working directory."""
    write_paper(tmp_path, "toy", TOY.replace("family: convnet", "family: convnet, kernal: 3"))
    config = config.resolve()
    if inside:
        monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as raised:
        load({}, config, tmp_path)
    expected = "toy/paper.yaml: unknown key 'variants.plain.model.kernal' (did you mean 'kernel'?)"
    assert str(raised.value) == (expected if inside else f"{tmp_path}/{expected}")


@pytest.mark.parametrize(
    ("scales", "message"),
    [
        ("{dekk: {}}", "scales: there is no scale 'dekk' (did you mean 'desk'?)"),
        ("[desk]", "scales: expected a mapping of scales to changes"),
        ("{desk: [a]}", "scales.desk: expected a mapping of keys to values"),
        ("", None),
        ("{desk: , paper: {}}", None),
    ],
)
def test_changes_at_scales_are_checked(config: Path, tmp_path: Path, scales: str, message: str | None) -> None:
    """An empty section changes nothing."""
    write_paper(tmp_path, "toy", f"{TOY}scales: {scales}\n")
    with pytest.raises(UserError) if message else nullcontext() as raised:
        assert load({"scale": "desk"}, config, tmp_path).papers["toy"].title == "Toy"
    assert message is None or str(raised.value) == f"{tmp_path}/toy/paper.yaml: {message}"


def test_a_paper_may_use_the_scales_of_the_repository(toy: Path) -> None:
    """The user's own folder may have others."""
    (toy / "toy" / "paper.yaml").write_text(f"{TOY}scales: {{desk: {{}}, mine: {{title: Mine}}}}\n")
    (toy / "config" / "scales").mkdir(parents=True)
    (toy / "config" / "scales" / "mine.yaml").write_text("description: My own.")
    assert load({"scale": "mine"}, toy / "config", toy).papers["toy"].title == "Mine"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read (Is a directory)"),
        ("title: Gödel".encode("latin-1"), "not UTF-8 text; save it in this encoding"),
        (b"title: 2020-99-99", "not valid YAML: month must be in 1..12"),
    ],
)
def test_a_file_that_is_no_yaml(tmp_path: Path, content: bytes | None, message: str) -> None:
    file = tmp_path / "paper.yaml"
    file.mkdir() if content is None else file.write_bytes(content)
    with pytest.raises(UserError) as raised:
        read_yaml(file)
    assert str(raised.value) == f"{file}: {message}"


def write_paper(folder: Path, name: str, text: str) -> None:
    (folder / name).mkdir()
    (folder / name / "paper.yaml").write_text(text)


def test_papers_are_the_folders_with_a_paper_yaml(config: Path, tmp_path: Path) -> None:
    """A paper needs no `options.py`; other folders and files are ignored."""
    write_paper(tmp_path, "toy", TOY)
    write_paper(tmp_path, "another", TOY)
    (tmp_path / "notes").mkdir()
    (tmp_path / "schema.json").touch()
    assert papers.names(tmp_path) == ["another", "toy"]
    assert list(load({}, config, tmp_path).papers) == ["another", "toy"]
    with pytest.raises(UserError, match=r"there is no paper 'tay' \(did you mean 'toy'\?\)"):
        load({"papers": ["tay"]}, config, tmp_path)


def test_a_routing_without_a_name() -> None:
    with pytest.raises(UserError, match=r"\Ahere: routing: 'name' is missing\Z"):
        check(SupCapsOptions, {"routing": {"iterations": 2}}, "here")


def test_routing_is_a_name_or_a_section(config: Path) -> None:
    def routing(value: Any) -> dict[str, Any]:
        model: Any = load(in_routing(value), config).papers["sparse"].variants["dense"].model
        return dict(model.routing.model_dump())

    assert routing("dynamic") == routing({"name": "dynamic"}) == {"name": "dynamic", **DYNAMIC}
    assert routing({"name": "cosine", "iterations": 2}) == {"name": "cosine", "iterations": 2}


DYNAMIC = {"iterations": 3, "leaky": False, "gradient": "all"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"training": {"contrast": [1.8, 0.2]}}, "1.8 is larger than 0.2; give the smaller number first"),
        ({"model": {"decoder": [512, -1]}}, "greater than or equal to 1"),
        ({"latents": {"mnist/test": 0}}, "greater than or equal to 1"),
    ],
)
def test_impossible_numbers(config: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load(in_dense(**settings), config)


def test_a_folder_without_scales_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"scales: no files of scales; run the command in the project's folder"):
        load({"scale": "desk"}, tmp_path)


def test_every_scale_is_valid(config: Path) -> None:
    for file in (config / "scales").glob("*.yaml"):
        assert load({"scale": file.stem}, config).config.scale == file.stem


def test_order_of_merging(config: Path) -> None:
    def training(**values: Any) -> Any:
        return load({"scale": "smoke", **values}, config).papers["sparse"].variants["dense"].training

    assert training().steps < 1000, "the scale's defaults win over the paper's"
    assert training().shift == 6, "the variant's own settings stay"
    assert training(**in_dense(training={"steps": 13})).steps == 13, "the user's overrides win over all"


def test_a_list_of_probes_means_the_usual_number_of_images(config: Path) -> None:
    def probes(value: Any) -> dict[str, int]:
        return dict(load(in_dense(probes=value), config).papers["sparse"].variants["dense"].probes)

    assert probes(["single-capsules", "more"]) == {"single-capsules": 32, "more": 32}
    assert probes({"single-capsules": 1000}) == {"single-capsules": 1000}


def test_a_head_sees_one_array_or_several(config: Path) -> None:
    def features(value: Any) -> tuple[str, ...]:
        return load(in_svm(features=value), config).papers["sparse"].heads["svm"].features

    assert features("prior_presence") == ("prior_presence",)
    assert features(["presence", "pose"]) == ("presence", "pose")


def test_merge() -> None:
    assert merge({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}, "d": [4]}) == {"a": {"b": 3, "c": 2}, "d": [4]}
    assert merge({"a": [1, 2]}, {"a": [3]}) == {"a": [3]}
    # A section with another name has other options; a bare name is a section.
    assert merge({"name": "em", "x": 1}, {"name": "dynamic"}) == {"name": "dynamic"}
    assert merge({"name": "em", "x": 1}, {"y": 2}) == {"name": "em", "x": 1, "y": 2}
    assert merge({"routing": "em"}, {"routing": {"iterations": 2}}) == {"routing": {"name": "em", "iterations": 2}}


def test_files_and_mappings_merge_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("scale: desk\noverrides: {routing: cosine}\n")
    sources = [tmp_path / "missing.yaml", tmp_path / "a.yaml", {"overrides": {"routing": {"iterations": 2}}}]
    assert merged(sources) == {"scale": "desk", "overrides": {"routing": {"name": "cosine", "iterations": 2}}}
    assert merged([*sources, {"overrides": {"routing": "em"}}, {"scale": "smoke"}]) == {
        "scale": "smoke",
        "overrides": {"routing": "em"},
    }


def test_seeds(config: Path) -> None:
    assert load({"scale": "paper"}, config).seeds == (0, 1, 2, 3, 4)
    assert load({"scale": "paper", "seeds": [7]}, config).seeds == (7,)


def test_a_variant_may_have_seeds_of_its_own(config: Path) -> None:
    own = {"overrides": {"sparse": {"variants": {"dense": {"seeds": [0, 7]}}}}, "scale": "smoke", "papers": ["sparse"]}
    project = load(own, config)
    variants = project.papers["sparse"].variants
    assert [project.seeds_of(variants[name]) for name in ("dense", "supcaps")] == [(0, 7), (0,)]
    assert project.seeds == (0, 7)
    chosen = load(own | {"seeds": [3]}, config)
    assert chosen.seeds_of(chosen.papers["sparse"].variants["dense"]) == chosen.seeds == (3,)
    own["overrides"]["sparse"]["variants"]["dense"]["seeds"] = [7]
    with pytest.raises(UserError, match=r"variants\.dense\.seeds: the scale's first seed, 0, is missing"):
        load(own, config)


def test_a_data_set_is_replaced_by_the_one_of_the_scale(config: Path) -> None:
    desk = load({"scale": "desk"}, config)
    assert desk.resolve("affnist/test") == "affnist-generated/test"
    assert desk.resolve("mnist-40/test") == "mnist-40/test"


@pytest.mark.parametrize(
    ("snapshots", "message"),
    [([40000], "40000 is after the last step, 8000"), ([2, 1], "the steps do not increase"), ([0], "greater than")],
)
def test_snapshots_are_steps_of_the_training(config: Path, snapshots: list[int], message: str) -> None:
    changed = {"sparse": {"variants": {"dense-28": {"training": {"snapshots": snapshots}}}}}
    with pytest.raises(UserError, match=message):
        load({"scale": "desk", "papers": ["sparse"], "overrides": changed}, config)


@pytest.mark.parametrize(("name", "known"), [("mnist/test@5", True), ("mnist/test@6", False)])
def test_latents_of_a_snapshot_need_it(tmp_path: Path, config: Path, name: str, known: bool) -> None:
    kept = TOY.replace("both: {<<: *plain,", "both: {<<: *plain, training: {snapshots: [5]},")
    write_paper(tmp_path, "toy", kept.replace("latents: {mnist/test: null", f"latents: {{{name}: null"))
    expected = nullcontext() if known else pytest.raises(UserError, match=r"'mnist/test@6': 6 is not in training.snap")
    with expected:
        assert "mnist/test" in load({"papers": ["toy"]}, config, tmp_path).papers["toy"].used_sets


def test_project_survives_json(config: Path) -> None:
    project = load({"scale": "desk"}, config)
    assert Project.model_validate(project.model_dump(mode="json")) == project


TOY = """
title: Toy
authors: Nobody
reference: none
protocols: {turned: {title: Turned, test: {set: mnist-rotated/test}}}
heads: {argmax: {kind: argmax, features: scores}}
variants:
  plain: &plain {title: Plain, model: {family: convnet}, data: mnist/train}
  fashion: {<<: *plain, title: Fashion, data: fashion-mnist/train}
  both: {<<: *plain, title: Both, latents: {mnist/test: null}, images: [affnist/test], beside: [turned]}
  turned: {<<: *plain, title: Turned, data: mnist-rotated/train}
timings:
  mixed: {variants: [fashion, turned]}
  turning: {variants: [turned, both]}
tables:
  table-1: {title: Three, caption: Three., needs: [plain, fashion, turned]}
  table-2: {title: Turned, caption: One., needs: [turned]}
  table-3: {title: All, caption: Four.}
figures:
  figure-1: {title: Time, caption: Of two., timings: [mixed], needs: []}
  figure-2: {title: Time of others, caption: Of none., timings: [turning], needs: []}
  figure-3: {title: Images, caption: Of two., needs: [both, fashion]}
  figure-4: {title: Drawn, caption: From nothing., needs: []}
"""


@pytest.fixture
def toy(tmp_path: Path, config: Path) -> Path:
    """A folder of papers with one paper, `toy`."""
    write_paper(tmp_path, "toy", TOY)
    return tmp_path


def without(folder: Path, *names: str, **values: Any) -> Project:
    return load({"papers": ["toy"], "without": list(names), **values}, Path("config"), folder)


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("fashion-mnist", {"plain", "both", "turned"}),
        ("mnist", {"fashion"}),  # and with it all sets that are derived from it
        ("mnist-rotated", {"plain", "fashion", "both"}),
        ("affnist-generated", {"plain", "fashion", "turned"}),  # replaces affNIST
    ],
)
def test_variants_that_need_an_unavailable_set_are_left_out(toy: Path, name: str, kept: set[str]) -> None:
    project = without(toy, name, datasets={"affnist": "affnist-generated"})
    assert set(project.papers["toy"].variants) == kept
    lost = project.left_out["toy"]
    assert lost.sets == (name,)
    assert lost.variants == dict.fromkeys({"plain", "fashion", "both", "turned"} - kept, (name,))


@pytest.mark.parametrize(
    ("name", "datasets"), [("affnist", {"affnist": "affnist-generated"}), ("affnist-generated", {})]
)
def test_a_set_that_is_not_used_is_not_missed(toy: Path, name: str, datasets: dict[str, str]) -> None:
    """Neither a set that is replaced, nor a replacement that is not in use."""
    project = without(toy, name, datasets=datasets)
    assert set(project.papers["toy"].variants) == {"plain", "fashion", "both", "turned"}
    assert not project.left_out


def test_outputs_that_show_only_left_out_variants_are_left_out(toy: Path) -> None:
    whole = without(toy).papers["toy"]
    project = without(toy, "mnist-rotated", "affnist")
    paper, lost = project.papers["toy"], project.left_out["toy"]
    assert list(paper.tables) == ["table-1", "table-3"]
    assert list(paper.figures) == ["figure-1", "figure-3", "figure-4"]
    assert lost.outputs == {"table-2": "Turned", "figure-2": "Time of others"}
    assert [paper.matching(table.needs) for table in paper.tables.values()] == [("plain", "fashion")] * 2
    assert paper.figures["figure-3"].needs == ("fashion",)
    assert {name: timing.variants for name, timing in paper.timings.items()} == {"mixed": ("fashion",)}
    assert paper.figures["figure-4"] == whole.figures["figure-4"]
    assert lost.variants == {"both": ("affnist",), "turned": ("mnist-rotated",)}
    assert str(lost) == ("without affnist, mnist-rotated; left out: both, turned; Time of others; Turned")


def test_captions_name_what_is_left_out(toy: Path) -> None:
    paper = without(toy, "mnist-rotated", "affnist").papers["toy"]
    captions = {name: output.caption for name, output in paper.outputs.items()}
    assert captions == {
        "table-1": "Three. Left out, as it needs mnist-rotated: turned.",
        "table-3": "Four. Left out, as they need affnist, mnist-rotated: both, turned.",
        "figure-1": "Of two. Left out, as it needs mnist-rotated: turned.",
        "figure-3": "Of two. Left out, as it needs affnist: both.",
        "figure-4": "From nothing.",
    }


PAIR = "  figure-5: {title: Pair, caption: Of a pair., needs: [plain, fashion]}\n"


@pytest.mark.parametrize(
    ("names", "whole", "caption"),
    [
        (["toy/turned"], True, "Of a pair."),
        (["toy/plain"], False, "Of a pair. Left out: plain."),
        (["toy/plain"], True, None),
        (["fashion-mnist"], True, None),
        (["toy/plain", "toy/fashion"], False, None),
    ],
)
def test_a_figure_depends_on_its_variants(
    tmp_path: Path, config: Path, names: list[str], whole: bool, caption: str | None
) -> None:
    write_paper(tmp_path, "toy", TOY + (PAIR.replace("}", ", whole: true}") if whole else PAIR))
    project = without(tmp_path, *names)
    figure = project.papers["toy"].figures.get("figure-5")
    assert (figure and figure.caption) == caption
    assert ("figure-5" in project.left_out["toy"].outputs) == (caption is None)


def test_a_variant_depends_on_the_images_of_its_record(tmp_path: Path, config: Path) -> None:
    fashion = "fashion: {<<: *plain, images: [affnist/test], beside: [plain],"
    write_paper(tmp_path, "toy", TOY.replace("fashion: {<<: *plain,", fashion))
    assert "affnist/test" in without(tmp_path, "toy/both").papers["toy"].used_sets
    assert without(tmp_path, "affnist").left_out["toy"].variants == {"fashion": ("affnist",), "both": ("affnist",)}
    assert without(tmp_path, "toy/both").papers["toy"].variants["fashion"].beside == ("plain",)
    assert without(tmp_path, "toy/plain").papers["toy"].variants["fashion"].beside == ()
    write_paper(tmp_path, "mistaken", TOY.replace("fashion: {<<: *plain,", fashion.replace("[plain]", "[plane]")))
    with pytest.raises(
        UserError, match=r"variants.fashion.beside: no variant 'plane' in this paper \(did you mean 'plain'\?\)"
    ):
        load({"papers": ["mistaken"]}, config, tmp_path)


def test_a_paper_without_the_set_stays_whole(toy: Path) -> None:
    write_paper(toy, "other", TOY.replace("mnist-rotated", "mnist"))
    values = {"papers": ["toy", "other"], "without": ["mnist-rotated"]}
    project = load(values, Path("config"), toy)
    assert list(project.left_out) == ["toy"]
    assert project.papers["other"] == load({**values, "without": []}, Path("config"), toy).papers["other"]


def test_a_partial_project_survives_json(toy: Path) -> None:
    project = without(toy, "mnist-rotated", "affnist")
    assert Project.model_validate(project.model_dump(mode="json")) == project


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["fashion-mnits"], "config: without: there is no data set 'fashion-mnits' (did you mean 'fashion-mnist'?)"),
        (
            ["mnist", "fashion-mnist"],
            "config: without: nothing of the paper 'toy' is left; list the other papers in `papers`",
        ),
    ],
)
def test_sets_that_cannot_be_left_out(toy: Path, names: list[str], message: str) -> None:
    with pytest.raises(UserError) as raised:
        without(toy, *names)
    assert str(raised.value).startswith(message)


def test_generated_files_agree_with_the_models(config: Path) -> None:
    drift = manual.drift(manual.files(config))
    assert not drift, f"run `python -m recaps.config.manual --fix`\n{drift}"


def test_drift_is_shown_as_a_diff(tmp_path: Path) -> None:
    wanted = manual.files(tmp_path / "config", tmp_path / "papers")
    for file, text in wanted.items():
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text(text)
    assert manual.drift(wanted) == ""
    (tmp_path / "config" / "config.yaml").write_text(manual.config_file({}).replace("# Folder of all", "# Folder of"))
    difference = manual.drift(wanted)
    assert "-# Folder of results.\n+# Folder of all results.\n" in difference


def test_the_default_file_keeps_what_is_set_in_it(tmp_path: Path) -> None:
    chosen = {"scale": "desk", "seeds": [0, 1], "overrides": {"sparse": {"title": "Mine"}}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(chosen))
    text = manual.files(tmp_path)[tmp_path / "config.yaml"]
    assert yaml.safe_load(text) == yaml.safe_load(manual.config_file({})) | chosen


def test_default_file_gives_the_defaults(config: Path) -> None:
    assert load(yaml.safe_load(manual.config_file({})), config) == load({}, config)
