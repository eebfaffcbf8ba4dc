"""Dry runs: the jobs that the workflow plans, and its messages for mistakes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import yaml
from clones import SMOKE, Clone

import recaps
from recaps import estimate, papers
from recaps.config.load import Project, load
from recaps.plan.checks import TARGETS
from recaps.plan.plan import Plan


def test_smoke_plans_every_job_once(clone: Clone, project: Project) -> None:
    papers = project.papers.values()
    variants = [variant for paper in papers for variant in paper.variants.values()]
    jobs = clone.plan()
    assert jobs["train_variant"] == len(variants)
    assert jobs["read_model"] == len(variants), "latents and probes of a run are read by one job"
    assert jobs["record_run"] == len(variants)
    fitted = [variant for variant in variants if set(variant.heads) - {"argmax"}]
    assert 0 < jobs["evaluate_heads"] == len(fitted) < len(variants)
    assert jobs["time_steps"] == sum(len(paper.timings) for paper in papers)
    for name in project.papers:
        assert jobs[f"draw_tables_of_{name}"] == jobs[f"draw_figures_of_{name}"] == 1
    assert jobs["collect_metrics"] == len(papers)
    assert jobs["total"] <= 400, "the demo takes five minutes"
    assert jobs["score_claims"] == jobs["build_report"] == 1
    assert "fetch_file" not in jobs, "stand-ins need no network"


def test_no_target_prints_the_names_of_all_its_files(clone: Clone, project: Project) -> None:
    targets = (*TARGETS, *project.papers)
    lines = clone.snakemake(*SMOKE, "-n", "--", *targets).output.splitlines()
    assert len([line for line in lines if "Made, scale smoke" in line]) == len(targets)
    assert max(map(len, lines)) < 1000


def test_the_estimate_counts_the_jobs_of_a_dry_run(clone: Clone, project: Project) -> None:
    counted = estimate.jobs(Plan(project))
    assert by_stage(clone.plan()) == counted | {"all": 1, "total": sum(counted.values()) + 1}


def by_stage(jobs: dict[str, int]) -> Counter[str]:
    """Add up the jobs of rules that differ by the name of a paper only."""
    counts = Counter[str]()
    for rule, count in jobs.items():
        counts[rule.partition("_of_")[0]] += count
    return counts


def test_one_paper_alone(clone: Clone, project: Project) -> None:
    """No paper depends on the configuration of another, for example on its probes or timings."""
    for name, paper in project.papers.items():
        jobs = clone.plan("--config", "scale=smoke", f"papers=[{name}]")
        assert jobs["train_variant"] == len(paper.variants)
        assert jobs["collect_metrics"] == 1


def test_half_a_paper_where_a_set_cannot_be_had(clone: Clone, root: Path) -> None:
    values = ["scale=desk", "papers=[consensus]", "without=[smallnorb]"]
    done = clone.snakemake("--profile", "profiles/local", "-n", "--config", *values)
    assert done.status == 0, done.output
    project = load({"scale": "desk", "papers": ["consensus"], "without": ["smallnorb"]}, root / "config")
    made = [project.every[name] for name in ("consensus", "consensus.kernels", "consensus.shifts")]
    seeds = [variant.seeds or project.scale.seeds for each in made for variant in each.variants.values()]
    assert done.jobs()["train_variant"] == sum(map(len, seeds)), "the paper, and the studies of its conjectures"
    assert done.jobs()["fetch_file"] == 4, "MNIST alone"
    assert "smallnorb" not in done.output.partition("Job stats")[2]


@pytest.mark.parametrize(
    ("target", "present", "absent"),
    [
        ("data", "prepare_dataset", {"train_variant"}),
        ("train", "train_variant", {"read_model"}),
        ("latents", "read_model", {"evaluate_heads"}),
        ("heads", "evaluate_heads", {"collect_metrics"}),
        ("tables", "draw_tables_of_sparse", {"draw_figures_of_sparse"}),
        ("figures", "draw_figures_of_sparse", {"draw_tables_of_sparse"}),
        ("papers", "draw_tables_of_sparse", {"score_claims"}),
        ("sparse", "collect_metrics", {"score_claims", "time_steps"}),
        ("discriminative", "time_steps", {"evaluate_heads"}),
        ("scorecard", "score_claims", {"build_report"}),
        ("report", "build_report", {"fetch_file"}),
    ],
)
def test_named_targets(clone: Clone, target: str, present: str, absent: set[str]) -> None:
    jobs = clone.plan("--config", "scale=smoke", "papers=[sparse, discriminative]", "--", target)
    assert target in jobs
    assert present in jobs
    assert not absent & jobs.keys()


def test_targets_are_listed(clone: Clone) -> None:
    done = clone.snakemake("--list-target-rules")
    assert {*TARGETS, *papers.names()} <= set(done.output.split())


def test_desk_fetches_the_official_files(clone: Clone) -> None:
    done = clone.snakemake("--profile", "profiles/local", "-n", "data", "--config", "scale=desk")
    assert done.status == 0, done.output
    assert done.jobs()["fetch_file"] == 15, "MNIST and Fashion-MNIST have four files each, CIFAR-10 one, smallNORB six"
    assert "affnist-generated/test" in done.output
    assert "cifar10/test" in done.output


def test_slurm_typed_just_so(clone: Clone, project: Project, root: Path) -> None:
    done = clone.snakemake("--profile", "slurm", "-n")
    assert done.status == 0, done.output
    jobs = done.jobs()
    assert jobs["train_variant"] == 5 * sum(len(paper.variants) for paper in project.papers.values())
    counted = estimate.jobs(Plan(load({"scale": "paper"}, root / "config")))
    assert by_stage(jobs) == counted | {"all": 1, "total": sum(counted.values()) + 1}


def test_nothing_runs_beside_a_timing(clone: Clone, project: Project) -> None:
    """It takes all cores that Snakemake has; a profile for a cluster must set their number."""
    (paper, timing), *_ = [(name, each) for name, paper in project.papers.items() for each in paper.timings]
    message = 'message:\n        "Timing {wildcards.timing} of {wildcards.paper}"'
    with clone.edited("rules/train.smk", message, "priority: 0"):  # without it, the number of threads is shown
        target = f"results/smoke/papers/{paper}/timings/{timing}.json"
        done = clone.snakemake("--cores", "2", "-n", "--quiet", "host", "--", target)
    assert done.status == 0, done.output
    job = done.output.partition("rule time_steps:")[2].partition("\n\n")[0]
    assert "threads: 2\n" in job
    slurm = yaml.safe_load((clone.folder / "slurm" / "config.yaml").read_text(encoding="utf-8"))
    assert "time_steps" in slurm["set-threads"]


def test_lint(clone: Clone) -> None:
    done = clone.snakemake("--lint")
    assert done.status == 0, done.output


def test_mistake_ends_in_one_line(clone: Clone) -> None:
    done = clone.snakemake("-n", "--cores", "1", "--config", "without=[smalnorb]")
    assert done.status == 1
    lines = [text for text in done.output.splitlines() if not text.startswith(("Config file", "Using "))]
    assert lines == ["recaps: config: without: there is no data set 'smalnorb' (did you mean 'smallnorb'?)"]


def test_a_target_that_is_none_ends_in_one_line(clone: Clone) -> None:
    done = clone.snakemake(*SMOKE, "-n", "--", "sparse", "sparse.svmm")
    assert done.status == 1
    line = "recaps: scale smoke has no target 'sparse.svmm' (did you mean 'sparse.svm'?)"
    assert done.output.splitlines()[-1] == line


def test_a_file_of_a_seed_that_is_not_planned_ends_in_one_line(clone: Clone) -> None:
    done = clone.snakemake(*SMOKE, "-n", "--", "results/smoke/runs/sparse/dense/seed-7/numbers.csv")
    assert done.status == 1
    what = "record_run: the settings ask for no paper sparse, variant dense, seed 7"
    assert done.output.splitlines()[-1] == f"recaps: {what}; see `seeds`, `only` and `without`"


def test_misspelt_key_of_a_paper_ends_in_one_line(clone: Clone) -> None:
    file = "src/recaps/papers/sparse/paper.yaml"
    with clone.edited(file, "learning: dense,", "learning: dense, capsuls: 3,"):
        done = clone.snakemake("-n", "--cores", "1")
    line = f"{file}: unknown key 'variants.dense.model.capsuls' (did you mean 'capsules'?)"
    assert done.status == 1
    assert done.output.splitlines()[1:] == [f"recaps: {line}"], "after the names of the profiles"


class Foreign(Clone):
    """A copy whose Snakemake runs the library of the checkout that is tested."""

    def environment(self) -> dict[str, str]:
        return super().environment() | {"PYTHONPATH": str(Path(recaps.__file__).parents[1])}


def test_another_checkouts_library_ends_in_one_line(clone: Clone) -> None:
    done = Foreign(clone.folder).snakemake("-n", "--cores", "1")
    assert done.status == 1
    (line,) = done.output.splitlines()[1:]  # after the names of the profiles
    assert line.startswith(f"recaps: {clone.folder}/src/recaps: this code would not run, as Python imports recaps from")


#: Prints the routing of a variant, from the plan and from what jobs read.
SHOWN = """\
of_plan = plan.project.papers["comparison"].variants["supcaps"].model.routing
of_jobs = workflow.config["overrides"]["comparison"]["variants"]["supcaps"]["model"]["routing"]
print("routing:", of_plan.name, of_plan.iterations, of_jobs, file=sys.stderr)


# The patterns of all files."""


def overriding(routing: str) -> str:
    return f"{{comparison: {{variants: {{supcaps: {{model: {{routing: {routing}}}}}}}}}}}"


@pytest.mark.parametrize("places", ["files", "file and key", "profile's file and key", "keys"])
def test_settings_merge_in_one_way_wherever_they_come_from(clone: Clone, tmp_path: Path, places: str) -> None:
    """Snakemake's own merge would drop the name of the routing: `cosine`, then `iterations: 2`."""
    first, second = overriding("cosine"), overriding("{iterations: 2}")
    a, b, profile = tmp_path / "a.yaml", tmp_path / "b.yaml", tmp_path / "config.yaml"
    a.write_text(f"scale: smoke\noverrides: {first}\n")
    b.write_text(f"overrides: {second}\n")
    profile.write_text("cores: 1\nconfigfile: a.yaml\n")
    arguments = {
        "files": ["--configfile", str(a), str(b)],
        "file and key": ["--configfile", str(a), "--config", f"overrides={second}"],
        "profile's file and key": ["--profile", str(tmp_path), "--config", f"overrides={second}"],
        "keys": ["--config", f"overrides={first}", f"overrides={second}"],
    }
    with clone.edited("Snakefile", "# The patterns of all files.", SHOWN):
        done = clone.snakemake("-n", "--cores", "1", *arguments[places], "--", "data")
    assert done.status == 0, done.output
    *_, shown = [line for line in done.output.splitlines() if line.startswith("routing:")]
    assert shown in [f"routing: cosine 2 {{'name': 'cosine', 'iterations': {two}}}" for two in ("2", "'2'")]


@pytest.mark.parametrize(
    ("arguments", "scale"),
    [
        (["--config", "scale=smoke"], "smoke"),
        (["--configfile", "a.yaml", "--config", "scale=smoke"], "smoke"),
        (["--configfile", "a.yaml", "b.yaml"], "paper"),
        (["--configfile", "b.yaml", "a.yaml"], "desk"),
        (["--configfile", "a.yaml", "--replace-workflow-config"], "desk"),
    ],
)
def test_later_settings_override_earlier_ones(clone: Clone, tmp_path: Path, arguments: list[str], scale: str) -> None:
    (tmp_path / "a.yaml").write_text("scale: desk\n")
    (tmp_path / "b.yaml").write_text("scale: paper\n")
    found = [str(tmp_path / each) if each.endswith(".yaml") else each for each in arguments]
    done = clone.snakemake("-n", "--cores", "1", *found, "--", "data")
    assert done.status == 0, done.output
    assert f"Made, scale {scale}: the prepared data sets" in done.output


def test_every_key_of_a_profile_has_its_comment(root: Path) -> None:
    for file in sorted((root / "profiles").glob("*/config.yaml")):
        lines = file.read_text(encoding="utf-8").splitlines()
        for key in yaml.safe_load("\n".join(lines)):
            number = next(n for n, line in enumerate(lines) if line.startswith(f"{key}:"))
            assert lines[number - 1].startswith("#"), f"{file}: {key}"


def test_the_example_of_a_sites_file_is_accepted_as_it_is(clone: Clone) -> None:
    site = "profiles/slurm/site.example.yaml"
    done = clone.snakemake("--profile", "slurm", "--profile", site, "-n", "--config", "scale=smoke")
    assert done.status == 0, done.output
    assert done.jobs()["train_variant"] > 0
