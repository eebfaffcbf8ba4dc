"""The scorecard and the report."""

csv, md, json, png = files.scorecard()


rule score_claims:
    input:
        claims=plan.written("claims.yaml"),
        metrics=plan.metrics(),
        records=plan.records(plan.with_claims()),
        again=again("score_claims"),
    output:
        csv=report(
            csv,
            caption="../workflow/report/scorecard.rst",
            category="Scorecard",
            labels={"content": "all claims", "scale": "{scale}"},
        ),
        md=md,
        json=json,
        png=report(
            png,
            caption="../workflow/report/overview.rst",
            category="Scorecard",
            labels={"content": "numbers in percent", "scale": "{scale}"},
        ),
        # For `dvc metrics`.
        verdicts=[files.verdicts(paper) for paper in plan.project.papers],
    log:
        files.log("score_claims"),
    localrule: True
    conda:
        "../envs/recaps.yaml"
    params:
        identity=plan.identity("score_claims"),
        papers=list(plan.project.papers),
    message:
        "Scorecard of scale {wildcards.scale}"
    script:
        "../workflow/scripts/stage.py"


rule build_report:
    input:
        plan.behind_report(),
        readings=plan.written("README.md"),
        again=again("build_report"),
    output:
        html=files.report(),
    log:
        files.log("build_report"),
    localrule: True
    conda:
        "../envs/recaps.yaml"
    params:
        identity=plan.identity("build_report"),
    message:
        "Report of scale {wildcards.scale}: {output.html}"
    script:
        "../workflow/scripts/stage.py"
