"""The metrics, tables and figures of each paper, from saved results: drawing never trains."""


rule collect_metrics:
    input:
        plan.metrics_inputs,
        again=again("collect_metrics"),
    output:
        files.metrics(),
    log:
        files.log("collect_metrics/{paper}"),
    localrule: True
    conda:
        "../envs/recaps.yaml"
    params:
        identity=plan.identity("collect_metrics"),
    message:
        "Metrics of {wildcards.paper}"
    script:
        "../workflow/scripts/stage.py"


# A rule for each paper and study, because the tables and figures of each have other names.
for paper, settings in plan.project.every.items():
    for kind, made, shown in (("tables", plan.files.table, 0), ("figures", plan.files.figure, 1)):
        if outputs := getattr(settings, kind):

            rule:
                name:
                    f"draw_{kind}_of_{paper}"
                input:
                    plan.shown(paper, outputs.values()),
                    again=again(f"draw_{kind}", paper=paper),
                output:
                    *[
                        report(
                            made(paper, name)[shown],
                            caption="../workflow/report/output.rst",
                            category=kind.capitalize(),
                            subcategory=paper,
                            labels={"name": name, "scale": plan.scale},
                        )
                        for name in outputs
                    ],
                    *[file for name in outputs for place, file in enumerate(made(paper, name)) if place != shown],
                    *([plan.files.shown(paper)] if kind == "figures" else []),
                log:
                    plan.files.log(f"draw_{kind}/{paper}"),
                localrule: True
                conda:
                    "../envs/recaps.yaml"
                params:
                    **plan.drawing(paper, kind),
                message:
                    f"{kind.capitalize()} of {paper}"
                script:
                    "../workflow/scripts/stage.py"
