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
        project=plan.measured,
        printed={},
    message:
        "Metrics of {wildcards.paper}"
    script:
        "../workflow/scripts/stage.py"


# A rule for each paper and study, because the tables and figures of each have other names.
for paper, settings in plan.project.every.items():
    if settings.tables:

        rule:
            name:
                f"draw_tables_of_{paper}"
            input:
                plan.shown(paper, settings.tables.values()),
                again=again("draw_tables", paper=paper),
            output:
                csv=[
                    report(
                        plan.files.table(paper, name)[0],
                        caption="../workflow/report/output.rst",
                        category="Tables",
                        subcategory=paper,
                        labels={"name": name, "scale": plan.scale},
                    )
                    for name in settings.tables
                ],
                text=[file for name in settings.tables for file in plan.files.table(paper, name)[1:]],
            log:
                plan.files.log(f"draw_tables/{paper}"),
            localrule: True
            conda:
                "../envs/recaps.yaml"
            params:
                **plan.drawing(paper, "tables"),
            message:
                f"Tables of {paper}"
            script:
                "../workflow/scripts/stage.py"

    if settings.figures:

        rule:
            name:
                f"draw_figures_of_{paper}"
            input:
                plan.shown(paper, settings.figures.values()),
                again=again("draw_figures", paper=paper),
            output:
                png=[
                    report(
                        plan.files.figure(paper, name)[1],
                        caption="../workflow/report/output.rst",
                        category="Figures",
                        subcategory=paper,
                        labels={"name": name, "scale": plan.scale},
                    )
                    for name in settings.figures
                ],
                other=[file for name in settings.figures for file in plan.files.figure(paper, name)[::2]],
                shown=plan.files.shown(paper),
            log:
                plan.files.log(f"draw_figures/{paper}"),
            localrule: True
            conda:
                "../envs/recaps.yaml"
            params:
                **plan.drawing(paper, "figures"),
            message:
                f"Figures of {paper}"
            script:
                "../workflow/scripts/stage.py"
