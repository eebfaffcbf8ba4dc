"""The scorecard and the report."""


localrules:
    score_claims,
    build_report,


rule score_claims:
    input:
        claims=plan.claims(),
        metrics=plan.metrics(),
        records=plan.records(),
    output:
        csv=report(
            "<scaled>/scorecard.csv",
            caption="../workflow/report/scorecard.rst",
            category="Scorecard",
            labels={"scale": "{scale}"},
        ),
        md="<scaled>/scorecard.md",
        json="<scaled>/scorecard.json",
        # For `dvc metrics`.
        verdicts=expand(
            "<scaled>/verdicts/{paper}.json",
            paper=plan.project.papers,
            allow_missing=True,
        ),
    log:
        "<logs>/score_claims.log",
    conda:
        "../envs/recaps.yaml"
    params:
        code=plan.code("score_claims"),
        papers=list(plan.project.papers),
        left_out=plan.left_out,
    message:
        "Scorecard of scale {wildcards.scale}"
    script:
        "../workflow/scripts/score_claims.py"


rule build_report:
    input:
        scorecard=plan.scorecard(),
        tables=plan.tables(),
        figures=plan.figures(),
        metrics=plan.metrics(),
        heads=plan.heads(),
        timings=plan.timings(),
        records=plan.records(),
        datasets=plan.datasets(),
        readings=plan.readings(),
    output:
        html="<scaled>/report.html",
    log:
        "<logs>/build_report.log",
    conda:
        "../envs/recaps.yaml"
    params:
        code=plan.code("build_report"),
        project=plan.settings,
    message:
        "Report of scale {wildcards.scale}: {output.html}"
    script:
        "../workflow/scripts/build_report.py"
