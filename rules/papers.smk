"""The metrics, tables and figures of each paper, from saved results: drawing never trains."""


localrules:
    draw_table,
    draw_figure,


csv, md, tex = files.table()
pdf, png, data = files.figure()


rule draw_table:
    input:
        plan.table_inputs,
    output:
        csv=report(
            csv,
            caption="../workflow/report/output.rst",
            category="Tables",
            subcategory="{paper}",
            labels={"table": "{table}", "scale": "{scale}"},
        ),
        md=md,
        tex=tex,
    log:
        files.log("draw_table/{paper}-{table}"),
    conda:
        "../envs/recaps.yaml"
    params:
        code=plan.paper_code("draw_table", "tables"),
        project=plan.settings,
        printed=plan.printed,
        caption=plan.table_caption,
    message:
        "Table {wildcards.table} of {wildcards.paper}"
    script:
        "../workflow/scripts/stage.py"


rule draw_figure:
    input:
        plan.figure_inputs,
    output:
        pdf=pdf,
        png=report(
            png,
            caption="../workflow/report/output.rst",
            category="Figures",
            subcategory="{paper}",
            labels={"figure": "{figure}", "scale": "{scale}"},
        ),
        csv=data,
    log:
        files.log("draw_figure/{paper}-{figure}"),
    conda:
        "../envs/recaps.yaml"
    params:
        code=plan.paper_code("draw_figure", "figures"),
        project=plan.settings,
        printed=plan.printed,
        caption=plan.figure_caption,
    message:
        "Figure {wildcards.figure} of {wildcards.paper}"
    script:
        "../workflow/scripts/stage.py"


rule collect_metrics:
    input:
        plan.metrics_inputs,
    output:
        files.metrics(),
    log:
        files.log("collect_metrics/{paper}"),
    benchmark:
        files.benchmark("collect_metrics/{paper}")
    conda:
        "../envs/recaps.yaml"
    threads: 2
    resources:
        mem_mb=growing(8000),
        runtime=growing(120),
    params:
        code=plan.paper_code("collect_metrics", "metrics"),
        project=plan.measured,
        printed={},
    message:
        "Metrics of {wildcards.paper}"
    script:
        "../workflow/scripts/stage.py"
