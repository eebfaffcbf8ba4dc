"""Each paper's tables, figures and metrics: pure functions of saved results, so that re-drawing never retrains."""


localrules:
    draw_table,
    draw_figure,


rule draw_table:
    input:
        plan.table_inputs,
    output:
        csv=report(
            "<paper>/{table}.csv",
            caption="../workflow/report/output.rst",
            category="Tables",
            subcategory="{paper}",
            labels={"table": "{table}", "scale": "{scale}"},
        ),
        md="<paper>/{table}.md",
        tex="<paper>/{table}.tex",
    log:
        "<logs>/draw_table/{paper}-{table}.log",
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
        "../workflow/scripts/draw_table.py"


rule draw_figure:
    input:
        plan.figure_inputs,
    output:
        pdf="<paper>/{figure}.pdf",
        png=report(
            "<paper>/{figure}.png",
            caption="../workflow/report/output.rst",
            category="Figures",
            subcategory="{paper}",
            labels={"figure": "{figure}", "scale": "{scale}"},
        ),
        csv="<paper>/{figure}.csv",
    log:
        "<logs>/draw_figure/{paper}-{figure}.log",
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
        "../workflow/scripts/draw_figure.py"


rule collect_metrics:
    input:
        plan.metrics_inputs,
    output:
        metrics="<paper>/metrics.csv",
        arrays="<paper>/metrics.npz",
    log:
        "<logs>/collect_metrics/{paper}.log",
    benchmark:
        "<benchmarks>/collect_metrics/{paper}.tsv"
    conda:
        "../envs/recaps.yaml"
    threads: 2
    resources:
        mem_mb=growing(8000),
        runtime=growing(120),
    params:
        code=plan.paper_code("collect_metrics", "metrics"),
        project=plan.settings,
        printed={},
    message:
        "Metrics of {wildcards.paper}"
    script:
        "../workflow/scripts/collect_metrics.py"
