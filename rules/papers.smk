"""Each paper's tables, figures and metrics: pure functions of saved results, so that re-drawing never retrains."""


localrules:
    draw_table,
    draw_figure,
    collect_metrics,


rule draw_table:
    input:
        claims=plan.claims,
        results=plan.table_inputs,
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
        code=plan.paper_code("draw_table"),
        project=plan.settings,
        caption=plan.table_caption,
    message:
        "Table {wildcards.table} of {wildcards.paper}"
    script:
        "../workflow/scripts/draw_table.py"


rule draw_figure:
    input:
        claims=plan.claims,
        results=plan.figure_inputs,
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
        code=plan.paper_code("draw_figure"),
        project=plan.settings,
        caption=plan.figure_caption,
    message:
        "Figure {wildcards.figure} of {wildcards.paper}"
    script:
        "../workflow/scripts/draw_figure.py"


rule collect_metrics:
    input:
        claims=plan.claims,
        results=plan.metrics_inputs,
    output:
        metrics="<paper>/metrics.csv",
    log:
        "<logs>/collect_metrics/{paper}.log",
    conda:
        "../envs/recaps.yaml"
    params:
        code=plan.paper_code("collect_metrics"),
        project=plan.settings,
    message:
        "Metrics of {wildcards.paper}"
    script:
        "../workflow/scripts/collect_metrics.py"
