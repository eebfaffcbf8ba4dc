"""Data sets in one format, from the official files or embedded stand-ins."""


rule fetch_file:
    output:
        file=Path(plan.data, "{dataset}", "{file}"),
    log:
        Layout(Path(plan.results)).log("fetch_file/{dataset}/{file}"),
    localrule: True
    conda:
        "../envs/recaps.yaml"
    message:
        "Fetching {wildcards.file} of {wildcards.dataset}"
    script:
        "../workflow/scripts/fetch_file.py"


rule prepare_dataset:
    input:
        plan.raw_files,
        again=again("prepare_dataset"),
    output:
        **prepared,
    log:
        files.log("prepare_dataset/{dataset}-{split}"),
    conda:
        "../envs/recaps.yaml"
    resources:
        mem_mb=growing(4000),
        runtime=growing(30),
    params:
        **plan.params("prepare_dataset"),
    message:
        "Preparing {wildcards.dataset}/{wildcards.split}"
    script:
        "../workflow/scripts/stage.py"
